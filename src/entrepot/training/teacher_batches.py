"""What a teacher's forwards are of: batches that come one after another, or samples by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from entrepot.arguments import shown
from entrepot.capture import Captured
from entrepot.capture.copies import tensors
from entrepot.errors import BatchesEnded, ConfigurationError, NotServed
from entrepot.training.teacher_names import Asked

CURSORS = 4096
"""Products for which it is remembered which sample is next."""


class Forward:
    """One batch, and what was captured of it so far.

    :ivar batch: what the model is given, once it is loaded.
    :ivar rows: how many products of one kind it has.
    :ivar samples: the row of each, for samples by number.
    :ivar captured: of :attr:`modules`; None before the first run.
    :ivar alone: what is made of it is made one kind at a time, for something failed.
    :ivar taken: the contract's tensors of the whole batch, by what was asked for.
    """

    def __init__(self, load: Callable[[], Any], by_row: bool) -> None:
        self._load: Callable[[], Any] | None = load
        self._by_row = by_row
        self.batch: Any = None
        self.rows = 0
        self.samples: dict[int, int] = {}
        self.captured: Captured | None = None
        self.modules = Asked((), ())
        self.alone = False
        self.taken: dict[Asked, Mapping[str, torch.Tensor]] = {}

    def load(self) -> None:
        """Have the batch, if it is not there yet."""
        if self._load is not None:
            batch = self._load()
            self.rows = rows_of(batch) if self._by_row else 1
            self.batch = batch
            self._load = None

    def has(self, asked: Asked) -> bool:
        """Whether all that is asked for was captured."""
        return (
            set(asked.inputs) <= set(self.modules.inputs)
            and set(asked.outputs) <= set(self.modules.outputs)
            and (asked.index is None or asked.index in self.samples)
        )


def rows_of(batch: Any) -> int:
    """The size of the first dimension of the first tensor that has one."""
    for tensor in tensors(batch):
        if tensor.ndim:
            if not tensor.shape[0]:
                raise ConfigurationError("a batch has no rows; leave it out of `batches`")
            return tensor.shape[0]
    raise ConfigurationError(
        f"a batch is a tensor, a tuple of arguments or a mapping of them, got {shown(batch)}"
    )


Place = tuple[Forward, int]
"""A forward, and the row of it that is the product."""


class Batches(ABC):
    """Where a teacher's samples come from, and which forwards are kept."""

    @abstractmethod
    def place(self, asked: Sequence[Asked]) -> list[Place | Exception]:
        """The forward and row for each, in the same order; or why there is none."""

    @abstractmethod
    def apart(self, forward: Forward, asked: Asked) -> Forward:
        """Where ``asked`` is made alone, after it failed in ``forward`` with others."""

    @abstractmethod
    def failed(self, forward: Forward, asked: Asked) -> None:
        """``forward`` could not be run for ``asked``, and will not be able to."""

    @abstractmethod
    def made(self, forward: Forward) -> None:
        """``forward`` has served all that was placed in it; drop what is not to be kept."""


class Stream(Batches):
    """Batches in their order. Each product has a place of its own in them.

    :param batches: begun again when it ends, if it can be.
    :param by_row: a product is a row of a batch, and not the whole.
    :param keep: how many batches are kept for products that have not come that far.
    """

    def __init__(self, batches: Iterable[Any], by_row: bool, keep: int) -> None:
        self._batches = batches
        self._by_row = by_row
        self._keep = keep
        self._iterator: Iterator[Any] | None = None
        self._kept: OrderedDict[int, Forward] = OrderedDict()
        self._next = 0
        self._cursors: OrderedDict[Asked, tuple[int, int]] = OrderedDict()

    def place(self, asked: Sequence[Asked]) -> list[Place | Exception]:
        places: list[Place | Exception] = []
        for one in asked:
            try:
                places.append(self._place(one))
            except Exception as error:  # a data set may raise anything, and others are served
                places.append(error.with_traceback(None))
        return places

    def _place(self, asked: Asked) -> Place:
        if asked.index is not None:
            raise NotServed(
                f"there is no sample {asked.index}: this teacher's batches come one after another; "
                f"give Teacher a function of indices to have samples by number"
            )
        oldest = next(iter(self._kept), self._next)
        number, row = self._cursors.get(asked, (oldest, 0))
        if number < oldest:
            number, row = oldest, 0
        elif number < self._next and row >= self._kept[number].rows:
            number, row = number + 1, 0
        if number == self._next:
            self._fetch()
        self._cursors[asked] = number, row + 1
        self._cursors.move_to_end(asked)
        if len(self._cursors) > CURSORS:
            self._cursors.popitem(last=False)
        return self._kept[number], row

    def _fetch(self) -> None:
        batch = self._next_batch()
        forward = Forward(lambda: batch, self._by_row)
        forward.load()
        self._kept[self._next] = forward
        self._next += 1

    def _next_batch(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._batches)
            for batch in self._iterator:
                return batch
            if self._iterator is self._batches:
                raise BatchesEnded(
                    f"the teacher's batches have ended after {self._next}: they are an iterator, "
                    f"which can be gone through once; give what can be begun again, such as a "
                    f"list or a DataLoader"
                )
            self._iterator = None
        raise BatchesEnded("the teacher's batches have ended: there is nothing in them")

    def apart(self, forward: Forward, asked: Asked) -> Forward:  # noqa: ARG002
        return forward

    def failed(self, forward: Forward, asked: Asked) -> None:
        # The rest of the batch would fail likewise, and with it the order when it comes again.
        number, _ = self._cursors.get(asked, (-1, 0))
        if self._kept.get(number) is forward:
            self._cursors[asked] = number + 1, 0

    def made(self, forward: Forward) -> None:
        done = next((number for number, one in self._kept.items() if one is forward), -1)
        for number in [one for one in self._kept if one <= done - self._keep]:
            del self._kept[number]


class Indexed(Batches):
    """Samples by number: one batch for all that are asked for together.

    :param load: the batch of these samples, a row each in their order.
    :param by_row: as for :class:`Stream`; without, each sample is a batch of its own.
    :param keep: forwards that are kept for orders of the same samples.
    """

    def __init__(self, load: Callable[[list[int]], Any], by_row: bool, keep: int) -> None:
        self._load = load
        self._by_row = by_row
        self._keep = keep
        self._kept: deque[Forward] = deque(maxlen=keep)
        """The one that was made last at the end."""

    def place(self, asked: Sequence[Asked]) -> list[Place | Exception]:
        places: list[Place | Exception] = []
        new: list[Forward] = []
        for one in asked:
            if one.index is None:
                error = NotServed(
                    "this teacher has samples by number only; order one under a name with a "
                    "number in it, such as train/7/layer_3"
                )
                places.append(error)
                continue
            forward = next((each for each in reversed(self._kept) if each.has(one)), None)
            if forward is None:
                mine = (each for each in new if self._by_row or one.index in each.samples)
                forward = next(mine, None)
            if forward is None:
                forward = self._forward()
                new.append(forward)
            samples = forward.samples
            row = samples.setdefault(one.index, len(samples))
            places.append((forward, row))
        return places

    def _forward(self) -> Forward:
        def load() -> Any:
            batch = self._load(list(forward.samples))
            if self._by_row and (rows := rows_of(batch)) != len(forward.samples):
                raise ConfigurationError(
                    f"`batches` was asked for {len(forward.samples)} samples and gave a batch of "
                    f"{rows} rows; it gives a row for each index, in their order"
                )
            return batch

        forward = Forward(load, self._by_row)
        return forward

    def apart(self, forward: Forward, asked: Asked) -> Forward:  # noqa: ARG002
        alone = self._forward()
        assert asked.index is not None
        alone.samples[asked.index] = 0
        return alone

    def failed(self, forward: Forward, asked: Asked) -> None:
        pass  # when it comes again it is asked for by the same number

    def made(self, forward: Forward) -> None:
        if forward in self._kept:
            self._kept.remove(forward)
        if forward.captured is not None:
            self._kept.append(forward)
