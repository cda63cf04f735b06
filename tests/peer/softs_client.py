"""softs' own Client, driven. Runs in the peer's environment."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import softs  # type: ignore[import-not-found]
from softs.market.protocol import (  # type: ignore[import-not-found]
    ClientCmd,
    decode_payload,
    make_request,
)

from tests.peer.lines import commands, serve

MEDIUMS = {
    "shm": softs.ShmMedium,
    "file": softs.FilesystemMedium,
    "tcp": softs.TCPMedium,
}


class PatchedClient(softs.Client):  # type: ignore[misc]
    """For the benchmark: a push that arrives while an answer is awaited is not taken for it.

    Stock, that push's slot is lost for ever; with it, the peer is measured at its best.
    """

    def _send(
        self, cmd: bytes, payload: dict[str, Any], timeout_ms: int | None = None
    ) -> dict[str, Any]:
        self._drain_stale_replies()
        self._market.send_multipart(make_request(cmd, payload))
        until = time.monotonic() + (timeout_ms or self.send_timeout_ms) / 1000
        while self._market.poll(max(0, int((until - time.monotonic()) * 1000))):
            frames = self._market.recv_multipart()
            if frames[0] not in (ClientCmd.FULFILLED, ClientCmd.FAILED):
                answer: dict[str, Any] = decode_payload(frames[-1])
                return answer
            self._handle_reply(frames)
        return {"ok": False, "error": "timeout"}


class Driven:
    """The commands."""

    client: Any

    def start(
        self,
        endpoint: str,
        medium: str = "tcp",
        slot_size: int = 64,
        num_slots: int = 8,
        address: str | None = None,
        hello: bool = True,
        patched: bool = False,
        send_timeout_ms: int = 10_000,
    ) -> int | None:
        kind = PatchedClient if patched else softs.Client
        self.client = kind(
            endpoint, MEDIUMS[medium], slot_size, num_slots, address, send_timeout_ms
        )
        return self.hello() if hello else None

    def hello(self) -> int:
        answer: int = self.client.hello()["peer_id"]
        return answer

    def order(self, product: str) -> str | None:
        order_id: str | None = self.client.request_slot(product)
        return order_id

    def poll(self, timeout_ms: int = 0) -> int:
        count: int = self.client.poll_completions(timeout_ms)
        return count

    def completed(self) -> int | None:
        slot: int | None = self.client.get_completed()
        return slot

    def sample(self, product: str, timeout_ms: int = 1000) -> int | None:
        slot: int | None = self.client.request_sample(product, timeout_ms)
        return slot

    def read(self, slot: int, release: bool = True) -> str:
        data: bytes = self.client.medium.read(slot)
        if release:
            self.client.release_slot(slot)
        return data.hex()

    def digest(self, slot: int) -> str:
        data: bytes = self.client.medium.read(slot)
        self.client.release_slot(slot)
        return hashlib.sha256(data).hexdigest()

    def discard(self) -> int:
        count: int = self.client.discard()
        return count

    def cancel(self, order_id: str) -> dict[str, Any]:
        """The broker's whole answer, which ``Client.cancel`` makes a bool of."""
        answer: dict[str, Any] = self.client._send(ClientCmd.CANCEL, {"order_id": order_id})
        return answer

    def stats(self) -> dict[str, Any]:
        figures: dict[str, Any] = self.client.get_stats()
        return figures

    def slots(self) -> dict[str, int]:
        """How many of its slots the client takes for free, ordered and completed."""
        return {
            "free": len(self.client._free_slots),
            "pending": len(self.client._pending_slots),
            "completed": len(self.client._completed_slots),
        }

    def pump(self, product: str, seconds: float) -> dict[str, float]:
        """Keep every slot ordered for ``seconds`` and count what comes."""
        client, served = self.client, 0
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            while client.request_slot(product) is not None:
                pass
            client.poll_completions(1000)
            while (slot := client.get_completed()) is not None:
                client.release_slot(slot)
                served += 1
        spent = time.monotonic() - started
        # What is still open is taken in, so that the next command starts with every slot.
        until = time.monotonic() + 10
        while client._pending_slots and time.monotonic() < until:
            client.poll_completions(100)
        while (slot := client.get_completed()) is not None:
            client.release_slot(slot)
        return {"per_s": served / spent, "left": len(client._pending_slots)}

    def one_at_a_time(self, product: str, count: int) -> list[float]:
        """Seconds from ordering to having, for each of ``count`` orders in turn."""
        times = []
        for _ in range(count):
            started = time.perf_counter()
            slot = self.client.request_sample(product, 10_000)
            times.append(time.perf_counter() - started)
            assert slot is not None
            self.client.release_slot(slot)
        return times

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close()


if __name__ == "__main__":
    serve(commands(Driven()))
