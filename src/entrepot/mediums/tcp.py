"""Slots in the client's own memory, which suppliers on other machines write over TCP.

The owner listens, and every order gets an address of its own, ``tcp:host:port/<32 hex digits>``.
Whoever was handed it may write that order's slot, and nothing else; an input has an address that
may be read. When the order ends, or moves, its address is taken back, so that a supplier that was
thought dead and writes late is refused. How the two ends talk is in ``tcp_wire.py``.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import weakref
from ipaddress import ip_address
from typing import TYPE_CHECKING

import xxhash

from entrepot.errors import (
    BadAddress,
    Closed,
    ConfigurationError,
    Fenced,
    MediumError,
    MediumGone,
    NotOwner,
    ProductTooLarge,
    SlotOutOfRange,
    UsedAfterFork,
)
from entrepot.mediums.base import Medium, as_bytes, nbytes_of
from entrepot.mediums.memory import MemoryMedium, map_memory
from entrepot.mediums.tcp_owner import Owner
from entrepot.mediums.tcp_supplier import Lines, Terms, networks_of
from entrepot.mediums.tcp_wire import REST

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

    from entrepot.settings import SupplierSettings

BACKLOG = 128

_HOST = r"[0-9A-Za-z](?:[0-9A-Za-z._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}(?:%[0-9A-Za-z._-]{1,15})?\]"
_ADDRESS = re.compile(rf"tcp:({_HOST}):([0-9]{{1,5}})/([0-9a-f]{{32}})")
_ADVERTISED = re.compile(rf"({_HOST})(?::([0-9]{{1,5}}))?")


class TCPMedium(MemoryMedium):
    """The owner's side: slots in this process's memory, and the port at which they are written.

    What comes and goes is not encrypted: for networks that are trusted.
    """

    scheme = "tcp"
    in_place = False
    fences = True

    _pid: int
    _owner_end: Owner
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
        listener = _listen(host, port)
        try:
            address = f"{cls.scheme}:{_advertised(host, advertise, listener)}"
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
        """Connect to the owner at ``address``, and ask whether it is still an order's.

        :raises BadAddress: not ``tcp:host:port/<32 hex digits>``, or another service's.
        :raises MediumGone: nothing listens there, or the order has ended or moved.
        :raises MediumDenied: the owner is in no network that this supplier connects to.
        :raises MediumTimeout: no answer came.
        """
        host, port, token = _taken_apart(address)
        if settings is None:
            from entrepot.settings import read_settings  # pydantic takes a while to load

            settings = read_settings().supplier
        place = cls.place_of(address)
        lines = Lines(
            Terms(place, settings.tcp_timeout_s, settings.tcp_slowest_nbytes_s),
            host,
            port,
            idle_s=settings.tcp_idle_s,
            networks=networks_of(settings.tcp_networks),
        )
        try:
            offset, nbytes = lines.check(token)
        except Fenced as error:
            lines.close()
            raise MediumGone(str(error)) from None
        except BaseException:
            lines.close()
            raise
        return TCPAttachment(address, lines, token, offset, nbytes)

    @classmethod
    def place_of(cls, address: str) -> str:
        return address.rpartition("/")[0]

    def renew(self) -> Self:
        return self.create(self.slot_nbytes, self.slots, **self._options)  # type: ignore[arg-type]

    # --- rights -------------------------------------------------------------------------

    def grant(self, offset: int, nbytes: int, *, readonly: bool = False) -> str:
        self._open_memory()
        self.check_range(offset, nbytes)
        token = secrets.token_bytes(16)
        self._owner_end.grant(token, offset, nbytes, readonly)
        return f"{self.address}/{token.hex()}"

    def revoke(self, offset: int) -> None:
        self._owner_end.revoke(offset)

    def written(self, offset: int) -> int:
        return self._owner_end.grants.written(offset)

    # --- the end ------------------------------------------------------------------------

    def _open_memory(self) -> memoryview:
        if os.getpid() != self._pid:
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


class TCPAttachment(Medium):
    """The supplier's side, for one order: all that its address allows, as one slot.

    :param offset: where that begins; with ``nbytes``, None for one that the owner was not asked
        about, and will judge when it is used.
    """

    scheme = "tcp"
    in_place = False
    fences = True

    def __init__(
        self,
        address: str,
        lines: Lines,
        token: bytes,
        offset: int = 0,
        nbytes: int | None = None,
    ) -> None:
        known = 2**63 - 1 if nbytes is None else nbytes
        super().__init__(address, known, 1, owner=False)
        self._lines = lines
        self._token = token
        self._start = offset

    @classmethod
    def create(cls, slot_nbytes: int, slots: int) -> Self:
        raise NotOwner(f"use TCPMedium.create({slot_nbytes}, {slots}): this is a supplier's side")

    @classmethod
    def attach(cls, address: str, settings: SupplierSettings | None = None) -> TCPAttachment:
        return TCPMedium.attach(address, settings)

    @classmethod
    def place_of(cls, address: str) -> str:
        return TCPMedium.place_of(address)

    def at(self, address: str) -> TCPAttachment:
        if self._lines.closed:
            raise Closed(f"{self._lines.terms.place} was closed on this side; attach again")
        return TCPAttachment(address, self._lines, _taken_apart(address)[2])

    # --- writing and reading ------------------------------------------------------------

    def write(self, offset: int, data: Buffer, limit: int | None = None, *, lease: int = 0) -> int:
        flat = as_bytes(data)
        self._write(offset, flat, limit, lease, None)
        return len(flat)

    def write_checksummed(
        self, offset: int, data: Buffer, limit: int | None = None, *, lease: int = 0
    ) -> int:
        running = xxhash.xxh3_64()
        self._write(offset, as_bytes(data), limit, lease, running)
        return running.intdigest()

    def _write(
        self,
        offset: int,
        data: memoryview,
        limit: int | None,
        lease: int,
        running: xxhash.xxh3_64 | None,
    ) -> None:
        if limit is None:
            self.check_range(offset, 0)
            self._lines.write(self._token, lease, offset, REST, data, running)
            return
        self.check_range(offset, limit)
        if len(data) > limit:
            raise ProductTooLarge(
                f"a product of {len(data)} bytes does not fit in the {limit} bytes at offset "
                f"{offset} of {self.address}; make the client's slots that large"
            )
        self._lines.write(self._token, lease, offset, limit, data, running)

    def read(self, offset: int, nbytes: int) -> bytes:
        self.check_range(offset, nbytes)
        return bytes(self._lines.read(self._token, offset, nbytes))

    def view(self, offset: int, nbytes: int, *, writable: bool = False) -> memoryview:
        self.check_range(offset, nbytes)
        if writable:
            self._check_open()
            raise MediumError(
                f"{self.address} is in another process: fill memory of your own and write it"
            )
        return memoryview(self._lines.read(self._token, offset, nbytes)).toreadonly()

    def checksum(self, offset: int, nbytes: int) -> int:
        self.check_range(offset, nbytes)
        return xxhash.xxh3_64_intdigest(self._lines.read(self._token, offset, nbytes))

    def check_range(self, offset: int, nbytes: int) -> None:
        self._check_open()
        end = self._start + self.nbytes
        if offset < self._start or nbytes < 0 or offset + nbytes > end:
            raise SlotOutOfRange(
                f"{nbytes} bytes at offset {offset} are not within the {self.nbytes} bytes at "
                f"offset {self._start} that {self.address} is for"
            )

    # --- the end ------------------------------------------------------------------------

    def gone(self) -> bool:
        """Asks the owner; one that does not answer is gone."""
        try:
            self._lines.check(self._token)
        except MediumError:
            return True
        return False

    def worth_keeping(self) -> bool:
        return self._lines.worth_keeping()

    def close(self) -> None:
        self._lines.close()

    def unlink(self) -> None:
        raise self._not_owner("unlink")

    def renew(self) -> Self:
        raise self._not_owner("renew")

    def _not_owner(self, what: str) -> NotOwner:
        return NotOwner(f"{self.address} was attached here; only its owner may {what} it")

    @property
    def closed(self) -> bool:
        return self._lines.closed

    def _check_open(self) -> None:
        if self._lines.closed:
            raise Closed(f"{self.address} was closed on this side; attach again")


# --- addresses --------------------------------------------------------------------------


def _taken_apart(address: str) -> tuple[str, int, bytes]:
    """Host, port and token.

    :raises BadAddress: it has none.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise BadAddress(
            f"{address[:200]!r} is not the address of a TCP order, which reads "
            f"tcp:<host>:<port>/<32 hex digits>"
        )
    host = match[1].strip("[]")
    return host, int(match[2]), bytes.fromhex(match[3])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigurationError(f"{host!r} is no place to listen: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise MediumError(
            f"cannot listen at {host}, port {port}: {error}; is it an address of this machine, "
            f"and the port free?"
        ) from error
    return listener


def _advertised(host: str, advertise: str | None, listener: socket.socket) -> str:
    """``host:port`` as it stands in addresses.

    :raises ConfigurationError: it would lead nowhere.
    """
    port = str(listener.getsockname()[1])
    if advertise is not None:
        bare = f"[{advertise}]" if advertise.count(":") > 1 and "[" not in advertise else advertise
        match = _ADVERTISED.fullmatch(bare)
        if match is None or not 0 < int(match[2] or port) < 65_536:
            raise ConfigurationError(
                f"advertise={advertise!r} is neither host nor host:port; an IPv6 address stands "
                f"in brackets before a port"
            )
        return f"{match[1]}:{match[2] or port}"
    listens_at = listener.getsockname()[0]
    if _is(listens_at, "is_unspecified"):
        return f"{_bracketed(_own_address(listener.family))}:{port}"
    return f"{_bracketed(host)}:{port}"


def _own_address(family: socket.AddressFamily | int) -> str:
    """The address of this machine's own name, which in a container is what others connect to."""
    name = socket.gethostname()
    families = {family, socket.AF_INET} if family == socket.AF_INET6 else {family}
    try:
        found = [
            str(each[4][0])
            for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            if each[0] in families
        ]
    except OSError:
        found = []
    for address in found:
        if not _is(address, "is_loopback") and not _is(address, "is_link_local"):
            return address
    raise ConfigurationError(
        f"listening everywhere, but where are suppliers to connect? This machine's name, {name}, "
        f"leads to {', '.join(found) or 'nothing'}; give advertise, the name or address by which "
        f"they reach it"
    )


def _is(host: str, what: str) -> bool:
    return bool(getattr(ip_address(host.partition("%")[0]), what))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
