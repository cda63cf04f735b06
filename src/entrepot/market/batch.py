"""Orders that are made together: a function of many, which orders it gets, and what it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from entrepot.arguments import checked_function, checked_int, checked_wait
from entrepot.errors import ConfigurationError, NotBytes, WrongBatch
from entrepot.market.protocol import WorkItem

MAX_SIZE = 65_536
"""Most orders in one call: the most that a supplier may hold."""

MAX_WAIT_S = 60.0
"""Longest that an order may be made to wait for company, in seconds."""


@dataclass(frozen=True)
class Batch:
    """A function that makes many orders in one call: one forward on a GPU, say.

    It stands where a supplier's plain function would, so one supplier may serve both:

    >>> Supplier(endpoint, {r"teacher/.*": Batch(forward, size=16), r"text/.*": clean})

    Orders of all patterns that have the same one are taken together.

    :param function: ``f(works) -> results``. ``works`` is a list of 1 to ``size``
        :class:`~entrepot.market.work.Work`, oldest first, and the list that it returns has a result
        for each, in the same order: what a plain function returns or, for an order that failed, an
        exception, returned and not raised. Or ``f(works, outs) -> sizes``, which fills each order's
        slot in place, and returns how many bytes that was for each, or an exception.
    :param size: orders in one call, at most.
    :param wait_s: seconds that an order is kept waiting for others to come, at most; by default
        the setting's, which is 0: what is there is taken.
    :raises ConfigurationError: it cannot be called, or a number is out of its range.
    """

    function: Callable[..., Any]
    size: int = 16
    wait_s: float | None = None

    def __post_init__(self) -> None:
        checked_function("a batch's function", self.function)
        size = checked_int("a batch's size", self.size, 1, MAX_SIZE)
        wait_s = checked_wait("a batch's wait_s", self.wait_s)
        if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
            raise ConfigurationError(
                f"an order may wait 0 to {MAX_WAIT_S:g} s for others, got {wait_s}"
            )
        object.__setattr__(self, "size", size)  # numbers of Python's: others cannot be sent
        object.__setattr__(self, "wait_s", wait_s)

    def __call__(self, *arguments: Any) -> Any:
        """The function's."""
        return self.function(*arguments)


BatchOf = Callable[[str], Batch | None]
"""The batch that a product's orders are made in; None for a plain function's."""


def together(queue: deque[WorkItem], batch_of: BatchOf) -> list[WorkItem]:
    """Take the oldest order out of ``queue``, and with it those that are made in the same call.

    The others keep their order, so that the oldest of them is next.
    """
    first = queue.popleft()
    items = [first]
    batch = batch_of(first.product_id)
    if batch is None:
        return items
    others: list[WorkItem] = []
    while queue and len(items) < batch.size:
        item = queue.popleft()
        (items if batch_of(item.product_id) is batch else others).append(item)
    queue.extendleft(reversed(others))
    return items


def is_full(queue: deque[WorkItem], batch_of: BatchOf) -> bool:
    """Whether more orders could not go with the oldest: its batch is there, or has no others."""
    batch = batch_of(queue[0].product_id)
    if batch is None:
        return True
    if len(queue) < batch.size:
        return False
    found = 0
    for item in queue:
        found += batch_of(item.product_id) is batch
        if found == batch.size:
            return True
    return False


def answers_of(name: str, made: Any, count: int) -> list[Any]:
    """What a function returned for ``count`` orders, one for each.

    :raises NotBytes: it is no list, nor anything like one.
    :raises WrongBatch: it has another length.
    """
    # A mapping has an order and a length too, and would be taken for its keys; bytes for numbers.
    no_list = isinstance(made, str | bytes | bytearray | memoryview | Mapping)
    if no_list or not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise NotBytes(
            f"{name} must return a list, with a result for each of {count} orders, and returned "
            f"{type(made).__name__}"
        )
    answers = list(made)
    if len(answers) != count:
        raise WrongBatch(
            f"{name} was given {count} orders and returned {len(answers)} results; return one for "
            f"each, in the same order, and an exception for one that failed"
        )
    return answers
