"""What every medium is: slots of raw bytes that one process orders into and another fills.

A medium has two roles. The *owner* (a client) makes it with ``create`` and reads from it; a
*supplier* gets the same bytes with ``attach(address)`` and writes the slot that its order
names. There are no headers and no lengths in the bytes themselves: what a slot holds is said
by the messages about it, so that a stranger can be handed an offset and nothing else.

Whoever attaches trusts nothing about the shape: an order names (address, offset, nbytes), a
stranger chose all three, and they are checked against the real size of what is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from entrepot.arguments import checked_int
from entrepot.errors import Closed, ConfigurationError, ProductTooLarge, SlotOutOfRange
from entrepot.mediums.receipt import Receipt

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

    from entrepot.settings import SupplierSettings

POISON = 0xDB
"""What a freed slot is filled with under ``poison=True``; as a float it is about -1e17."""

SLOT_ALIGNMENT = 64
"""Slots start at a multiple of this many bytes, so that a view of one can be seen as any dtype."""


class Medium(ABC):
    """Slots of bytes at an address. Abstract: nothing here has a default that could be wrong.

    Not for use from several threads at once on the *same slot*; different slots are independent.

    :ivar address: what goes into an order, ``scheme:place``.
    :ivar slot_nbytes: the most bytes that a slot holds. An attached medium does not know the
        owner's slots: it is one slot as large as the whole, and its writes need ``limit``.
    :ivar slots: how many slots.
    :ivar nbytes: bytes in all; more than ``slot_nbytes * slots`` where slots are padded.
    :ivar owner: whether this side made it, and so is the one that may ``unlink`` it.
    :ivar poison: whether :meth:`poison_slot` does anything.
    """

    scheme: ClassVar[str]
    """What its addresses start with."""

    in_place: ClassVar[bool]
    """Whether a :meth:`view` of an attached medium is the owner's own memory, and may be written.

    Where it is false a supplier fills memory of its own and sends it with ``write``; there a
    view is a copy.
    """

    fences: ClassVar[bool] = False
    """Whether each order has an address of its own, and one that was taken back is refused.

    Where it is false, a slot whose supplier was lost cannot be used again.
    """

    in_memory: ClassVar[bool] = False
    """Whether its owner may have a :meth:`view` that is ``writable``."""

    shared: ClassVar[bool] = False
    """Whether a :meth:`view` that a supplier has shows what the owner writes after it was taken."""

    grants_ahead: ClassVar[bool] = False
    """Whether an input can be granted before it is written, with :meth:`grant_ahead`."""

    aims: ClassVar[bool] = False
    """Whether :meth:`aim` has an effect."""

    def __init__(
        self,
        address: str,
        slot_nbytes: int,
        slots: int,
        *,
        owner: bool,
        poison: bool = False,
    ) -> None:
        self.address = address
        self.slot_nbytes = int(slot_nbytes)  # a number of numpy's cannot be sent
        self.slots = int(slots)
        self.owner = owner
        self.poison = poison
        self._client: str | None = None
        self._stride = padded(self.slot_nbytes) if owner else self.slot_nbytes
        self.nbytes = self._stride * self.slots

    # --- made by a subclass -------------------------------------------------------------

    @classmethod
    @abstractmethod
    def create(cls, slot_nbytes: int, slots: int) -> Self:
        """Make a new medium of ``slots`` slots of ``slot_nbytes`` bytes each, and own it.

        Subclasses add keyword-only options of their own. The content of a new slot is zeros.
        """

    @classmethod
    @abstractmethod
    def attach(cls, address: str, settings: SupplierSettings | None = None) -> Medium:
        """The supplier's side of the medium that ``address`` names.

        :param settings: what this supplier allows, and how long it waits; by default what the
            environment says.
        :raises BadAddress: it is not an address of this kind of medium.
        :raises MediumGone: nothing is there (any more).
        """

    @abstractmethod
    def renew(self) -> Self:
        """A fresh medium of the same kind, shape and options at a new address; owner only.

        A client does this when slots of the old one may still be written by a supplier that is
        thought to be dead: such a write must never show in the new one.

        :raises NotOwner: this side attached.
        """

    @abstractmethod
    def write(self, offset: int, data: Buffer, limit: int | None = None, *, lease: int = 0) -> int:
        """Copy ``data`` to ``offset`` and return how many bytes that was.

        :param limit: bytes in the slot that begins at ``offset``, as the order says. Without it,
            what is left of the slot that ``offset`` lies in.
        :param lease: the dispatch this write belongs to; a medium that can fence refuses another.
        :raises SlotOutOfRange: ``offset`` and ``limit`` are not all within the medium.
        :raises ProductTooLarge: ``data`` is longer than ``limit``. Nothing was written.
        :raises Fenced: the slot does not wait for this write. Nothing was written.
        :raises NotBytes: ``data`` is not a C-contiguous buffer.
        :raises Closed: after ``close``.
        """

    @abstractmethod
    def write_checksummed(
        self, offset: int, data: Buffer, limit: int | None = None, *, lease: int = 0
    ) -> int:
        """:meth:`write`, and return the xxh3 (64 bit) of ``data`` in place of its length."""

    def post(
        self, offset: int, data: Buffer, limit: int, *, lease: int = 0, final: bool = False
    ) -> tuple[int, Receipt | None]:
        """:meth:`write_checksummed`, but for what the owner has to say, which may come later.

        :param final: whether nobody will change ``data`` any more. Otherwise it may be changed once
            this returns, without changing what is written.
        :returns: the xxh3 of ``data``, and a receipt that tells what became of it. None where it is
            written already.
        """
        del final
        return self.write_checksummed(offset, data, limit, lease=lease), None

    def write_parts(
        self, offset: int, parts: Sequence[memoryview], limit: int, *, lease: int = 0
    ) -> int:
        """:meth:`write_checksummed` of several buffers of flat bytes, one after the other."""
        return self.write_checksummed(offset, b"".join(parts), limit, lease=lease)

    def post_parts(
        self, offset: int, parts: Sequence[memoryview], limit: int, *, lease: int = 0
    ) -> tuple[int, Receipt | None]:
        """:meth:`post` of such. They may be changed once this returns."""
        return self.write_parts(offset, parts, limit, lease=lease), None

    @abstractmethod
    def read(self, offset: int, nbytes: int) -> bytes:
        """A copy of ``nbytes`` bytes from ``offset``.

        :raises SlotOutOfRange: they are not all within the medium.
        :raises Closed: after ``close``.
        """

    @abstractmethod
    def view(self, offset: int, nbytes: int, *, writable: bool = False) -> memoryview:
        """A window on ``nbytes`` bytes from ``offset``, without a copy for the owner.

        It may outlive ``close``: the memory stays until the last window on it is gone. What a
        supplier wrote is certain to show once the owner has taken its :meth:`checksum`.

        :raises SlotOutOfRange: they are not all within the medium.
        :raises Closed: after ``close``.
        """

    @abstractmethod
    def checksum(self, offset: int, nbytes: int) -> int:
        """xxh3 (64 bit) of ``nbytes`` bytes from ``offset``; errors as :meth:`read`.

        What the owner sees through :meth:`view` afterwards is what was summed here.
        """

    @abstractmethod
    def gone(self) -> bool:
        """Whether the owner has unlinked it, so that nobody will read what is written here."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it; any number of times. The owner's ``close`` also unlinks."""

    @abstractmethod
    def unlink(self) -> None:
        """Take the address away, so that nobody can attach; any number of times; owner only.

        Who has it, on either side, keeps it until ``close``.

        :raises NotOwner: this side attached.
        """

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether ``close`` was called."""

    # --- who may write: for mediums that can tell ----------------------------------------

    def grant(self, offset: int, nbytes: int, *, readonly: bool = False) -> str:
        """The address for one order, whose slot is the ``nbytes`` at ``offset``; owner only.

        Whoever has it may write there or, with ``readonly``, read there. It takes the place of
        what was granted at that offset before. A medium that does not fence has one address.
        """
        del offset, nbytes, readonly
        return self.address

    def grant_ahead(self, offset: int, nbytes: int) -> str:
        """The address of an input that its owner writes next, and then says :meth:`filled`.

        Who reads it before that waits. So the order is on its way while its input is written. Only
        where :attr:`grants_ahead`.
        """
        return self.grant(offset, nbytes, readonly=True)

    def filled(self, offset: int) -> None:
        """What was granted ahead at ``offset`` is there, and may be read; owner only."""
        del offset

    def aim(self, offset: int, memory: memoryview) -> None:
        """A write of exactly that many bytes to the slot granted at ``offset`` may come there.

        Whoever granted it says so before anybody is told; ``memory`` is the medium's until the
        grant is taken back. Without :attr:`aims` it comes into its slot all the same.
        """
        del offset, memory

    def landed(self, offset: int) -> memoryview | None:
        """The memory that was aimed at, once a product is in there and not in its slot."""
        del offset
        return None

    def revoke(self, offset: int) -> None:
        """Take back what was granted at ``offset``: on return nobody writes there; owner only."""
        del offset

    def written(self, offset: int) -> int:
        """The lease of the last write to the slot at ``offset``, if it is complete.

        0 when there was none since the slot was granted, or for a medium that does not fence.
        """
        del offset
        return 0

    def checksum_written(self, offset: int, nbytes: int) -> int:
        """:meth:`checksum` of what a supplier wrote; of when it arrived, if it was summed then."""
        return self.checksum(offset, nbytes)

    def released(self, slot: int) -> None:
        """The client has given back slot number ``slot``, and looks at it no more; owner only.

        From any thread, also in the middle of something else: it takes no lock.
        """
        del slot

    # --- for suppliers that keep what they attached ---------------------------------------

    @classmethod
    def place_of(cls, address: str) -> str:
        """What the addresses of one medium have in common; orders of one place share it."""
        return address

    def at(self, address: str) -> Medium:
        """This attached medium for an order at ``address``, which is of the same place."""
        del address
        return self

    def worth_keeping(self) -> bool:
        """Whether a supplier should keep it attached for orders to come. Does not wait."""
        return not self.gone()

    # --- the same for all ---------------------------------------------------------------

    def take(self, client: str) -> None:
        """It is ``client``'s from now on, who alone says which slot is free.

        :raises Closed: it was closed.
        :raises ConfigurationError: it is another client's, or was attached here.
        """
        if self.closed:
            raise Closed(f"{self.address} was closed; make another medium for client {client}")
        if not self.owner:
            raise ConfigurationError(
                f"{self.address} was attached, and a client needs a medium of its own: "
                f"{type(self).__name__}.create(slot_nbytes, slots)"
            )
        if self._client is not None:
            raise ConfigurationError(
                f"{self.address} is the medium of client {self._client}: two clients would give "
                f"the same slots to different products; make one for each"
            )
        self._client = client

    def offset(self, slot: int) -> int:
        """Where slot number ``slot`` (from 0) begins, in bytes.

        :raises SlotOutOfRange: there is no such slot.
        """
        if not 0 <= slot < self.slots:
            raise SlotOutOfRange(
                f"slot {slot} of {self.address} does not exist; it has slots 0 to {self.slots - 1}"
            )
        return slot * self._stride

    def poison_slot(self, slot: int) -> None:
        """Under ``poison=True``, overwrite a freed slot, so that a late reader sees nonsense.

        Called on every release; without ``poison`` it does nothing.
        """
        if self.poison:
            self.write(self.offset(slot), bytes([POISON]) * self.slot_nbytes)

    def check_range(self, offset: int, nbytes: int) -> None:
        """Refuse what does not lie wholly within the medium.

        :raises SlotOutOfRange: with the numbers in it.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise SlotOutOfRange(
                f"{nbytes} bytes at offset {offset} are not within {self.address}, which has "
                f"{self.nbytes} bytes"
            )

    def check_write(self, offset: int, nbytes: int, limit: int | None) -> None:
        """Refuse a write that leaves the medium, or its slot.

        :raises SlotOutOfRange: the slot is not within the medium.
        :raises ProductTooLarge: ``nbytes`` is more than the slot has.
        """
        if limit is None:
            self.check_range(offset, 0)
            limit = max(0, self.slot_nbytes - offset % self._stride)
            if offset == self.nbytes:
                limit = 0
        else:
            self.check_range(offset, limit)
        if nbytes > limit:
            raise ProductTooLarge(
                f"a product of {nbytes} bytes does not fit in the {limit} bytes at offset "
                f"{offset} of {self.address}; make the client's slots that large"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        role = "owned" if self.owner else "attached"
        state = ", closed" if self.closed else ""
        return (
            f"<{type(self).__name__} {self.address} {role}{state}, "
            f"{self.slots} slots of {self.slot_nbytes} bytes>"
        )


def padded(slot_nbytes: int) -> int:
    """``slot_nbytes`` rounded up to a multiple of :data:`SLOT_ALIGNMENT`."""
    return -(-slot_nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def nbytes_of(slot_nbytes: int, slots: int) -> int:
    """Bytes that an owner allocates for that many padded slots.

    :raises ConfigurationError: no slots, slots of no bytes, or what is no number of them.
    """
    return padded(checked_int("slot_nbytes", slot_nbytes, 1)) * checked_int("slots", slots, 1)
