"""Every exception that Entrepot raises.

Each message says what was wrong, with the value in it, and what to do next. ``code`` is the
short, stable word under which the same fault travels on the wire and appears in metrics, so
that scripts can branch on it without reading the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class EntrepotError(Exception):
    """The root of everything that the library raises on purpose."""

    code: ClassVar[str] = "error"


class ConfigurationError(EntrepotError, ValueError):
    """A setting, argument or specification has a value that cannot work."""

    code = "configuration"


class MissingExtra(EntrepotError, ImportError):
    """A feature needs a package that is not installed; the message names the extra."""

    code = "missing_extra"


class UsedAfterFork(EntrepotError):
    """A client, supplier or broker was used in a forked child; make a new one there."""

    code = "used_after_fork"


class Closed(EntrepotError):
    """The object was used after its ``close``."""

    code = "closed"


# --- the market -------------------------------------------------------------------------


class MarketError(EntrepotError):
    """The root of what goes wrong between clients, suppliers and the broker."""

    code = "market"


class BrokerUnavailable(MarketError, ConnectionError):
    """Nothing was heard from the broker in the time that was given."""

    code = "broker_unavailable"

    def __init__(self, endpoint: str, waited_s: float, doing: str) -> None:
        self.endpoint = endpoint
        self.waited_s = waited_s
        super().__init__(
            f"no broker answered at {endpoint} within {waited_s:.3g} s while {doing}; "
            f"check that `entrepot broker` runs there and that the endpoint is right"
        )


class EndpointInUse(MarketError, OSError):
    """Another process is bound to the endpoint that was asked for."""

    code = "endpoint_in_use"


class ProtocolError(MarketError):
    """A message is not one of the protocol's: malformed, unknown, too large or out of turn."""

    code = "malformed"


class Refused(MarketError):
    """The broker refused a request; ``code`` says why in a word, the message in a sentence."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code  # type: ignore[misc]  # narrower than the class's, on purpose
        super().__init__(f"the broker refused ({code}): {message}")


class PatternRefused(Refused):
    """A product pattern is not one that can be matched in linear time, or is taken."""


class OrderError(MarketError):
    """The root of what may become of an order instead of a product."""

    code = "order"


class OrderTimeout(OrderError, TimeoutError):
    """The product did not arrive in the time that was given; the order stays open."""

    code = "order_timeout"


class NoFreeSlot(OrderError):
    """Every slot of the medium is in use; release products or make the medium larger."""

    code = "no_free_slot"


class OrderCancelled(OrderError):
    """The order was cancelled or discarded before its product was taken."""

    code = "cancelled"


class OrderFailed(OrderError):
    """No supplier could make the product.

    ``reason`` is one of ``attempts``, ``lost``, ``deadline``, ``refused``; ``attempts`` has a
    line for each try: the supplier's name and what it raised.
    """

    code = "failed"

    def __init__(
        self, order_id: str, product_id: str, reason: str, attempts: Sequence[str]
    ) -> None:
        self.order_id = order_id
        self.product_id = product_id
        self.reason = reason
        self.attempts = tuple(attempts)
        said = "; ".join(attempts) if attempts else "nothing was tried"
        super().__init__(f"order {order_id} for {product_id!r} failed ({reason}): {said}")


class CorruptProduct(OrderError):
    """What arrived is not what the supplier's checksum says it sent, three times in a row."""

    code = "corrupt"


# --- mediums ----------------------------------------------------------------------------


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


# --- contracts --------------------------------------------------------------------------


class ContractError(EntrepotError, ValueError):
    """A product's bytes and what the contract says about them do not agree."""

    code = "contract"


# --- the demonstration ------------------------------------------------------------------


class DataUnavailable(EntrepotError, OSError):
    """The messages are not on this machine and could not be fetched, or are not the right ones."""

    code = "data_unavailable"


class DemoFailed(EntrepotError):
    """Something that the demonstration verifies did not hold, or one of its parts ended early."""

    code = "demo_failed"
