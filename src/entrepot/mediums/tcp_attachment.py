"""A supplier's side of a TCP medium: what one order's address allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import xxhash

from entrepot.errors import (
    Closed,
    Fenced,
    MediumError,
    MediumGone,
    NotOwner,
    ProductTooLarge,
    SlotOutOfRange,
)
from entrepot.mediums.base import Medium
from entrepot.mediums.buffers import as_bytes
from entrepot.mediums.tcp_address import bad_address, taken_apart
from entrepot.mediums.tcp_connection import Terms, networks_of
from entrepot.mediums.tcp_post import TCPPost
from entrepot.mediums.tcp_supplier import Lines
from entrepot.mediums.tcp_wire import EAGER_NBYTES, REST, ROW_NBYTES

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

    from entrepot.mediums.receipt import Receipt
    from entrepot.settings import SupplierSettings

ANY_NBYTES = 2**63 - 1
"""Bytes of a slot of which nobody asked how large it is."""


class TCPAttachment(Medium):
    """The supplier's side, for one order: all that its address allows, as one slot.

    One that was made by :meth:`at` does not know what that is: the owner judges when it is used.

    :param offset: where that begins.
    :param nbytes: how many bytes that is.
    """

    scheme = "tcp"
    in_place = False
    fences = True

    def __init__(
        self,
        address: str,
        lines: Lines,
        post: TCPPost,
        token: bytes,
        offset: int,
        nbytes: int,
    ) -> None:
        super().__init__(address, nbytes, 1, owner=False)
        self._lines = lines
        self._post = post
        self._token = token
        self._start = offset

    @classmethod
    def create(cls, slot_nbytes: int, slots: int) -> Self:
        raise NotOwner(f"use TCPMedium.create({slot_nbytes}, {slots}): this is a supplier's side")

    @classmethod
    def attach(cls, address: str, settings: SupplierSettings | None = None) -> TCPAttachment:
        """Connect to the owner at ``address``, and ask whether it is still an order's.

        :raises BadAddress: not ``tcp:host:port/<32 hex digits>``, or another service's.
        :raises MediumGone: nothing listens there, or the order has ended or moved.
        :raises MediumDenied: the owner is in no network that this supplier connects to.
        :raises MediumTimeout: no answer came.
        """
        host, port, token = taken_apart(address)
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
        return TCPAttachment(address, lines, TCPPost(lines), token, offset, nbytes)

    @classmethod
    def place_of(cls, address: str) -> str:
        return address.rpartition("/")[0]

    def at(self, address: str) -> TCPAttachment:
        if self._lines.closed:
            raise Closed(f"{self._lines.terms.place} was closed on this side; attach again")
        place, _, digits = address.rpartition("/")
        try:
            token = bytes.fromhex(digits)
        except ValueError:
            token = b""
        if place != self._lines.terms.place or len(digits) != 32 or len(token) != 16:
            raise bad_address(address)
        # For each order: a copy costs a third of making one.
        other = TCPAttachment.__new__(TCPAttachment)
        other.__dict__.update(self.__dict__)
        other.address = address
        other.slot_nbytes = other.nbytes = ANY_NBYTES
        other._token = token
        other._start = 0
        return other

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

    def post(
        self, offset: int, data: Buffer, limit: int, *, lease: int = 0, final: bool = False
    ) -> tuple[int, Receipt | None]:
        kept = data if type(data) is bytes else as_bytes(data)
        nbytes = len(kept)
        if self._lines.closed or offset < 0 or nbytes > limit or self.nbytes != ANY_NBYTES:
            self._check_write(offset, nbytes, limit)
        # It may be sent again, later. Copying what is large takes as long as waiting for it.
        if not (final or type(kept) is bytes):
            if nbytes > ROW_NBYTES:
                return self._write_now(offset, kept, limit, lease), None
            kept = bytes(kept)
        if nbytes > EAGER_NBYTES:
            return self._write_now(offset, kept, limit, lease), None
        receipt = self._post.put(self._token, lease, offset, limit, kept)
        return receipt.checksum, receipt

    def write_parts(
        self, offset: int, parts: Sequence[memoryview], limit: int, *, lease: int = 0
    ) -> int:
        self._check_write(offset, sum(map(len, parts)), limit)
        running = xxhash.xxh3_64()
        self._lines.write(self._token, lease, offset, limit, parts, running)
        return running.intdigest()

    def post_parts(
        self, offset: int, parts: Sequence[memoryview], limit: int, *, lease: int = 0
    ) -> tuple[int, Receipt | None]:
        if sum(map(len, parts)) <= ROW_NBYTES:
            return self.post(offset, b"".join(parts), limit, lease=lease)
        self._post.push()
        return self.write_parts(offset, parts, limit, lease=lease), None

    def _write_now(self, offset: int, data: Buffer, limit: int, lease: int) -> int:
        self._post.push()
        return self.write_checksummed(offset, data, limit, lease=lease)

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
            self._lines.write(self._token, lease, offset, REST, (data,), running)
            return
        self._check_write(offset, len(data), limit)
        self._lines.write(self._token, lease, offset, limit, (data,), running)

    def _check_write(self, offset: int, nbytes: int, limit: int) -> None:
        self.check_range(offset, limit)
        if nbytes > limit:
            raise ProductTooLarge(
                f"a product of {nbytes} bytes does not fit in the {limit} bytes at offset "
                f"{offset} of {self.address}; make the client's slots that large"
            )

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
        return self._lines.read(self._token, offset, nbytes).toreadonly()

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
