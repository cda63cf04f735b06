"""Slots in the client's own memory, which suppliers on other machines write over TCP.

The owner listens, and every order gets an address of its own, ``tcp:host:port/<32 hex digits>``.
Whoever was handed it may write that order's slot, and nothing else; an input has an address that
may be read. When the order ends, or moves, its address is taken back, so that a supplier that was
thought dead and writes late is refused. How the two ends talk is in ``tcp_wire.py``.
"""

from __future__ import annotations

import os
import secrets
import weakref
from typing import TYPE_CHECKING

from entrepot.errors import (
    UsedAfterFork,
)
from entrepot.mediums.base import nbytes_of
from entrepot.mediums.memory import MemoryMedium, map_memory
from entrepot.mediums.tcp_address import advertised, listen
from entrepot.mediums.tcp_attachment import TCPAttachment
from entrepot.mediums.tcp_owner import Owner

if TYPE_CHECKING:
    from typing import Self

    from entrepot.settings import SupplierSettings

TOKENS_AT_ONCE = 64
"""Tokens that are drawn at once: it takes as long as drawing a few."""


class TCPMedium(MemoryMedium):
    """The owner's side: slots in this process's memory, and the port at which they are written.

    What comes and goes is not encrypted: for networks that are trusted.
    """

    scheme = "tcp"
    in_place = False
    fences = True
    grants_ahead = True
    aims = True

    _pid: int
    _owner_end: Owner
    _drawn: list[bytes]
    _options: dict[str, object]

    @classmethod
    def create(
        cls,
        slot_nbytes: int,
        slots: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        timeout_s: float = 10.0,
        idle_s: float = 120.0,
        slowest_nbytes_s: int = 1 << 20,
        max_connections: int = 256,
        poison: bool = False,
    ) -> Self:
        """Take the memory and listen.

        :param host: where to listen: an address of this machine or its name, ``0.0.0.0`` or
            ``::`` for all of them. By default nobody beyond this machine can connect.
        :param port: any that is free, by default.
        :param advertise: where suppliers connect, ``host`` or ``host:port``, if that is not where
            it listens: behind a published port, or when listening everywhere.
        :param timeout_s: seconds that a supplier may take to say what it wants, or to send a part.
        :param idle_s: seconds that a supplier may keep its connection without using it.
        :param slowest_nbytes_s: bytes a second that a transfer must make, after ``timeout_s``.
        :param max_connections: suppliers connected at once.
        :param poison: overwrite each slot when it is freed (for debugging).
        :raises MediumError: it cannot listen there, or there is no memory.
        :raises ConfigurationError: what is advertised would lead nowhere; no slots, or slots of
            no bytes.
        """
        nbytes = nbytes_of(slot_nbytes, slots)
        listener = listen(host, port)
        try:
            address = f"{cls.scheme}:{advertised(host, advertise, listener)}"
            medium = cls(address, slot_nbytes, slots, owner=True, poison=poison)
            medium._memory = memory = map_memory(-1, nbytes, address)
            medium._owner_end = end = Owner(
                listener,
                memory,
                timeout_s=timeout_s,
                idle_s=idle_s,
                slowest_nbytes_s=slowest_nbytes_s,
                max_lines=max_connections,
            )
        except BaseException:
            listener.close()
            raise
        medium._pid = os.getpid()
        medium._drawn = []
        medium._options = {
            "host": host,
            "port": port,
            "advertise": advertise,
            "timeout_s": timeout_s,
            "idle_s": idle_s,
            "slowest_nbytes_s": slowest_nbytes_s,
            "max_connections": max_connections,
            "poison": poison,
        }
        weakref.finalize(medium, end.end)
        return medium

    @classmethod
    def attach(cls, address: str, settings: SupplierSettings | None = None) -> TCPAttachment:
        return TCPAttachment.attach(address, settings)

    @classmethod
    def place_of(cls, address: str) -> str:
        return TCPAttachment.place_of(address)

    def renew(self) -> Self:
        return self.create(self.slot_nbytes, self.slots, **self._options)  # type: ignore[arg-type]

    # --- rights -------------------------------------------------------------------------

    def grant(self, offset: int, nbytes: int, *, readonly: bool = False) -> str:
        return self._grant(offset, nbytes, readonly, True)

    def grant_ahead(self, offset: int, nbytes: int) -> str:
        return self._grant(offset, nbytes, True, False)

    def _grant(self, offset: int, nbytes: int, readonly: bool, filled: bool) -> str:
        self._open_memory()
        self.check_range(offset, nbytes)
        token = self._token()
        self._owner_end.grant(token, offset, nbytes, readonly, filled)
        return f"{self.address}/{token.hex()}"

    def filled(self, offset: int) -> None:
        self._owner_end.filled(offset)

    def aim(self, offset: int, memory: memoryview) -> None:
        self._owner_end.grants.aim(offset, memory)

    def landed(self, offset: int) -> memoryview | None:
        return self._owner_end.grants.landed(offset)

    def released(self, slot: int) -> None:
        self._owner_end.grants.let_go(slot * self._stride)

    def _token(self) -> bytes:
        """16 bytes from the system's source, which is asked for many at once."""
        drawn = self._drawn
        while True:
            try:
                return drawn.pop()
            except IndexError:
                some = secrets.token_bytes(TOKENS_AT_ONCE * 16)
                drawn.extend(some[start : start + 16] for start in range(0, len(some), 16))

    def revoke(self, offset: int) -> None:
        self._owner_end.revoke(offset)

    def written(self, offset: int) -> int:
        return self._owner_end.grants.written(offset)

    def checksum_written(self, offset: int, nbytes: int) -> int:
        self._open_memory()
        checksum = self._owner_end.grants.checksum(offset, nbytes)
        return self.checksum(offset, nbytes) if checksum is None else checksum

    # --- the end ------------------------------------------------------------------------

    def _open_memory(self) -> memoryview:
        if self._owner_end.forked:
            raise UsedAfterFork(
                f"{self.address} was made in process {self._pid} and is used in its forked child "
                f"{os.getpid()}, where nobody listens; make another one there"
            )
        return super()._open_memory()

    def gone(self) -> bool:
        return not self._owner_end.listening

    def close(self) -> None:
        self._memory = None
        self._owner_end.end()

    def unlink(self) -> None:
        self._owner_end.stop_listening()
