"""What goes wrong while bytes are moved."""

from __future__ import annotations

from entrepot.errors.root import EntrepotError


class MediumError(EntrepotError):
    """The root of what goes wrong while bytes are moved."""

    code = "medium"


class SlotOutOfRange(MediumError, IndexError):
    """A read or write would leave the slot, or the medium, that it names."""

    code = "slot_out_of_range"


class ProductTooLarge(MediumError, ValueError):
    """A product has more bytes than the slot that was ordered for it."""

    code = "product_too_large"


class MediumGone(MediumError, FileNotFoundError):
    """The address names a segment, file or server that is no longer there."""

    code = "medium_gone"


class BadAddress(MediumError, ValueError):
    """The address is not one of this medium's."""

    code = "bad_address"


class MediumDenied(MediumError, PermissionError):
    """The medium is there, but this user may not write to it."""

    code = "medium_denied"


class NotOwner(MediumError):
    """Only the side that made a medium may do this; the other side attached."""

    code = "not_owner"


class NotBytes(MediumError, TypeError):
    """What was to be put in a slot is not a C-contiguous buffer of plain values."""

    code = "not_bytes"


class MediumFull(MediumError, OSError):
    """There is no room for the medium, or for what was to be written to it."""

    code = "medium_full"


class MediumTimeout(MediumError, TimeoutError):
    """The other side of a medium did not do its part in the time that was given."""

    code = "medium_timeout"


class Fenced(MediumError, PermissionError):
    """The slot does not wait for this write any more: its order has ended, or moved elsewhere."""

    code = "fenced"


class SharedMemoryTooSmall(MediumFull):
    """``/dev/shm`` has no room for the segment."""

    code = "shared_memory_too_small"
