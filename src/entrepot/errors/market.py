"""What goes wrong between clients, suppliers and the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from entrepot.errors.root import EntrepotError


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


class NoSuchSupplier(MarketError):
    """No supplier has the name that was given; the message says which there are."""

    code = "no_such_supplier"


class StillAtWork(MarketError, TimeoutError):
    """A supplier's function had not returned in the time that was given; it goes on."""

    code = "still_at_work"


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
    line for each try: the supplier's name and what it raised. The sentence has each such line once.
    """

    code = "failed"

    def __init__(
        self, order_id: str, product_id: str, reason: str, attempts: Sequence[str]
    ) -> None:
        self.order_id = order_id
        self.product_id = product_id
        self.reason = reason
        self.attempts = tuple(attempts)
        times = Counter(attempts)  # in the order in which each was first raised
        lines = [line if n == 1 else f"{line} ({n} times)" for line, n in times.items()]
        said = "; ".join(lines) if lines else "nothing was tried"
        super().__init__(f"order {order_id} for {product_id!r} failed ({reason}): {said}")


class WrongBatch(OrderError):
    """A function of many orders returned more results, or fewer, than it was given orders."""

    code = "wrong_batch"


class CorruptProduct(OrderError):
    """What arrived is not what the supplier's checksum says it sent, three times in a row."""

    code = "corrupt"
