"""Write ``docs/protocol-vectors.json``: an encoded example of every message of the protocol.

    python -m tests.unit.market.make_vectors           # write the file
    python -m tests.unit.market.make_vectors --check   # exit 1 when the file is another

Each message is there with every field set and, where fields may be left out, with none of those.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from entrepot.market import protocol as p

PATH = Path(__file__).parents[3] / "docs" / "protocol-vectors.json"

TERMS = '{"specs":[{"name":"x","shape":[2,3],"dtype":"float32"}]}'

ABOUT = (
    "An encoded example of every message. 'frames' is what a peer sends or receives, in hex; "
    "'fields' is the map in the last frame, where {'bin': hex} stands for MessagePack's bin. "
    "Integers reach 2**64 - 1. 'struct' is the type in entrepot.market.protocol, null where a "
    "version-1 answer has none."
)

SESSION = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
INSTANCE = bytes.fromhex("f0e1d2c3b4a59687")
LEASE = 0xFEDC_BA98_7654_3210
CHECKSUM = 2**64 - 1
ADDRESS = "shm:entrepot-4f2a9c"
INPUT = p.Region(address=ADDRESS, offset=8192, nbytes=512)


class Vector(NamedTuple):
    """One message: who sends it, in which version, its command (none in a version-1 answer)."""

    name: str
    version: int
    sender: str
    command: bytes | None
    message: Struct | dict[str, Any]

    @property
    def frames(self) -> list[bytes]:
        fields = p.encode(self.message)
        return [fields] if self.command is None else [self.command, fields]

    def as_json(self) -> dict[str, Any]:
        frames = self.frames
        return {
            "name": self.name,
            "version": self.version,
            "from": self.sender,
            "command": None if self.command is None else self.command.decode(),
            "struct": type(self.message).__name__ if isinstance(self.message, Struct) else None,
            "frames": [frame.hex() for frame in frames],
            "fields": jsonable(msgspec.msgpack.decode(frames[-1])),
        }


def jsonable(value: Any) -> Any:
    """``value`` with its bytes as ``{"bin": hex}``."""
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """The inverse of ``jsonable``."""
    if isinstance(value, dict):
        if list(value) == ["bin"]:
            return bytes.fromhex(value["bin"])
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def version_1() -> Iterator[Vector]:
    def vector(
        name: str, sender: str, command: bytes | None, message: Struct | dict[str, Any]
    ) -> Vector:
        return Vector(f"v1 {name}", 1, sender, command, message)

    order_id, product_id, address = "c1-7", "layer_3", "sl_0123456789abcdef"
    for sender in ("client", "supplier"):
        yield vector(f"{sender} HELLO answered", "broker", None, _answer(peer_id=1))
    yield vector("client HELLO", "client", p.HELLO, p.Empty())
    yield vector("client HELLO that names its version", "client", p.HELLO, p.V1Hello())
    yield vector(
        "ORDER",
        "client",
        p.ORDER,
        p.V1Order(order_id=order_id, product_id=product_id, address=address, offset=4096),
    )
    yield vector("ORDER, CANCEL, DONE or GOODBYE taken", "broker", None, _answer())
    refused = {"ok": False, "code": "not_dispatchable", "error": "Order already dispatched"}
    yield vector("refused", "broker", None, refused)
    yield vector("CANCEL", "client", p.CANCEL, p.V1Cancel(order_id=order_id))
    yield vector("DISCARD", "client", p.DISCARD, p.Empty())
    yield vector(
        "DISCARD answered", "broker", None, _answer(cancelled=2, cancelled_ids=["c1-8", "c1-9"])
    )
    yield vector("STATS", "client", p.STATS, p.Empty())
    yield vector(
        "STATS answered",
        "broker",
        None,
        _answer(
            pending_orders=3,
            available_suppliers=1,
            connected_clients=2,
            connected_suppliers=4,
            total_completed=1_000_000,
            product_ids=[r"layer_\d+"],
        ),
    )
    yield vector("FULFILLED", "broker", p.FULFILLED, p.V1OrderId(order_id=order_id))
    yield vector("FAILED", "broker", p.FAILED, p.V1OrderId(order_id=order_id))
    patterns = [r"layer_\d+", r"inputs\[.*\]"]
    yield vector("supplier HELLO", "supplier", p.HELLO, p.SupplierHello(product_ids=patterns))
    yield vector("READY", "supplier", p.READY, p.Empty())
    yield vector("DONE", "supplier", p.DONE, p.V1Done(order_id=order_id))
    yield vector("DONE, failed", "supplier", p.DONE, p.V1Done(order_id=order_id, success=False))
    yield vector("GOODBYE", "supplier", p.GOODBYE, p.Empty())
    yield vector(
        "WORK",
        "broker",
        p.WORK,
        p.V1Work(order_id=order_id, product_id=product_id, address=address, offset=4096),
    )
    yield vector("TERMINATE", "broker", p.TERMINATE, p.Empty())


def _answer(**fields: Any) -> dict[str, Any]:
    return {"ok": True, **fields}


def from_clients() -> Iterator[Vector]:
    def vector(name: str, command: bytes, message: Struct) -> Vector:
        return Vector(f"client {name}", 2, "client", command, message)

    yield vector("HELLO", p.HELLO, p.ClientHello(seq=1, protocol=2, session=SESSION))
    yield vector(
        "HELLO, all fields",
        p.HELLO,
        p.ClientHello(
            seq=1,
            protocol=2,
            session=SESSION,
            name="trainer-0",
            contract="9f3c5a0e",
            last_push=41,
            open_orders=["o-7", "o-8"],
        ),
    )
    order = p.Order(order_id="o-7", product_id="layer_3", address=ADDRESS, offset=4096, nbytes=4096)
    full = p.Order(
        order_id="o-8",
        product_id="inputs[a.b]|outputs[c]",
        address="10.0.0.7:40123/5f2e",
        offset=2**40,
        nbytes=16 << 20,
        input=INPUT,
        priority=-3,
        deadline_s=2.5,
    )
    yield vector("ORDERS", p.ORDERS, p.Orders(orders=[order]))
    yield vector("ORDERS, all fields", p.ORDERS, p.Orders(orders=[order, full], seq=2))
    yield vector("MOVE", p.MOVE, p.Move(order_id="o-7", address=ADDRESS, offset=0, seq=3))
    yield vector("CANCEL", p.CANCEL, p.Cancel(order_id="o-7", seq=4))
    yield vector("DISCARD", p.DISCARD, p.Discard(seq=5))
    yield vector("STATS", p.STATS, p.StatsRequest(seq=6))
    yield vector("DRAIN", p.DRAIN, p.Drain(seq=7))
    yield vector("DRAIN, all fields", p.DRAIN, p.Drain(seq=8, name="teacher-1"))
    yield vector("HEARTBEAT", p.HEARTBEAT, p.ClientHeartbeat())
    yield vector("HEARTBEAT, all fields", p.HEARTBEAT, p.ClientHeartbeat(last_push=42))
    yield vector("GOODBYE", p.GOODBYE, p.Empty())


def from_broker() -> Iterator[Vector]:
    def vector(name: str, command: bytes, message: Struct) -> Vector:
        return Vector(f"broker {name}", 2, "broker", command, message)

    hello = p.HelloReply(
        protocol=2,
        instance=INSTANCE,
        resumed=True,
        missing=["o-8"],
        beat_s=1.0,
        suspect_s=5.0,
        dead_s=30.0,
        limits=p.Limits(
            message_nbytes=4 << 20,
            id_chars=p.ID_CHARS,
            patterns=p.PATTERNS,
            open_orders=65_536,
            error_chars=p.ERROR_CHARS,
        ),
    )
    yield vector("REPLY", p.REPLY, p.Reply(seq=3))
    yield vector("REPLY to HELLO", p.REPLY, p.Reply(seq=1, hello=hello))
    yield vector("REPLY to STATS", p.REPLY, p.Reply(seq=6, stats={"pending_orders": 3}))
    yield vector(
        "REPLY to DISCARD",
        p.REPLY,
        p.Reply(seq=5, untouched=["o-1"], touched=["o-2"], held=["o-3"]),
    )
    yield vector("REPLY to DRAIN", p.REPLY, p.Reply(seq=8, terminated=2))
    yield vector(
        "REPLY, refused",
        p.REPLY,
        p.Reply(
            seq=2, code="too_many_orders", error="65,536 orders are open", refused=["o-7", "o-8"]
        ),
    )
    yield vector(
        "REPLY, another contract",
        p.REPLY,
        p.Reply(
            seq=3,
            code="contract_mismatch",
            error="product 'layer_3' is supplied under contract '9f3c5a0e'",
            refused=["o-9"],
            terms=TERMS,
        ),
    )
    delivery = p.Delivery(order_id="o-7", lease=LEASE, nbytes=4096, checksum=CHECKSUM)
    yield vector(
        "REPLY, HELLO refused",
        p.REPLY,
        p.Reply(seq=4, code="stale_hello", error="HELLO 4 of this session came after its HELLO 9"),
    )
    yield vector("FULFILLED", p.FULFILLED, p.Fulfilled(push=1, orders=[delivery]))
    yield vector("FAILED", p.FAILED, p.Failed(push=2, order_id="o-8", reason="deadline"))
    yield vector(
        "FAILED, all fields",
        p.FAILED,
        p.Failed(
            push=3,
            order_id="o-8",
            reason="attempts",
            attempts=[
                p.Attempt(supplier="teacher-1", type="ValueError", message="no such layer"),
                p.Attempt(supplier="teacher-2", type="MemoryError"),
            ],
            lease=LEASE,
        ),
    )
    yield vector("LOST", p.LOST, p.Lost(push=4, order_id="o-9", lease=LEASE))
    work = p.WorkItem(
        order_id="o-7",
        lease=LEASE,
        product_id="layer_3",
        address=ADDRESS,
        offset=4096,
        nbytes=4096,
    )
    yield vector("WORK", p.WORK, p.Work(orders=[work]))
    yield vector(
        "WORK, all fields",
        p.WORK,
        p.Work(orders=[work, msgspec.structs.replace(work, order_id="o-8", input=INPUT)]),
    )
    yield vector("CANCEL to a supplier", p.CANCEL, p.SupplierCancel(leases=[1, LEASE]))
    yield vector("TERMINATE", p.TERMINATE, p.Empty())
    yield vector("HEARTBEAT to a client", p.HEARTBEAT, p.BrokerHeartbeat(push=4))
    yield vector("HEARTBEAT to a supplier", p.HEARTBEAT, p.BrokerHeartbeat())


def from_suppliers() -> Iterator[Vector]:
    def vector(name: str, command: bytes, message: Struct) -> Vector:
        return Vector(f"supplier {name}", 2, "supplier", command, message)

    patterns = [r"layer_\d+", r"inputs\[.*\]"]
    yield vector(
        "HELLO",
        p.HELLO,
        p.SupplierHello(seq=1, protocol=2, session=SESSION, product_ids=patterns[:1]),
    )
    yield vector(
        "HELLO, all fields",
        p.HELLO,
        p.SupplierHello(
            seq=1,
            protocol=2,
            session=SESSION,
            name="teacher-1",
            product_ids=patterns,
            credit=16,
            batch=8,
            exclusive=True,
            contracts={patterns[0]: "9f3c5a0e"},
            terms={"9f3c5a0e": TERMS},
            holds=[1, LEASE],
            cancels=True,
        ),
    )
    yield vector("READY", p.READY, p.Empty())
    yield vector("DONE", p.DONE, p.Done(results=[p.Result(order_id="o-7", lease=LEASE)]))
    yield vector(
        "DONE, all fields",
        p.DONE,
        p.Done(
            results=[
                p.Result(order_id="o-7", lease=LEASE, nbytes=4096, checksum=CHECKSUM),
                p.Result(
                    order_id="o-8",
                    lease=7,
                    success=False,
                    error=p.Fault(type="ValueError", message="no such layer: 99"),
                ),
            ]
        ),
    )
    yield vector("DRAIN", p.DRAIN, p.SupplierDrain())
    yield vector("DRAIN, all fields", p.DRAIN, p.SupplierDrain(leases=[1, LEASE]))
    yield vector("HEARTBEAT", p.HEARTBEAT, p.Empty())
    yield vector("GOODBYE", p.GOODBYE, p.Empty())


def vectors() -> list[Vector]:
    return [*version_1(), *from_clients(), *from_suppliers(), *from_broker()]


def text() -> str:
    """The file's content."""
    lines = ",\n".join(json.dumps(vector.as_json()) for vector in vectors())
    return f'{{\n"about": {json.dumps(ABOUT)},\n"vectors": [\n{lines}\n]\n}}\n'


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="write nothing; compare")
    if arguments.parse_args().check:
        return int(PATH.read_text() != text())
    PATH.write_text(text())
    print(f"{PATH}: {len(vectors())} vectors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
