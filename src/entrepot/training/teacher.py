"""A model that serves its activations: one supplier's function for every layer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from entrepot.arguments import checked_callable, checked_int, checked_kind, checked_several, shown
from entrepot.capture import Captured, ModelIOCatcher
from entrepot.capture.catcher import INPUTS, OUTPUTS
from entrepot.capture.copies import mapped, tensors
from entrepot.contract import Contract
from entrepot.errors import CaptureError, ConfigurationError, ContractError, WrongTake
from entrepot.market.supplier import Supplier, Work
from entrepot.training.teacher_batches import Batches, Forward, Indexed, Stream
from entrepot.training.teacher_names import Asked, Names

logger = logging.getLogger(__name__)

K = TypeVar("K")

MAX_KEEP = 1024
"""Most batches that a teacher keeps."""

Take = Callable[[Captured, Sequence[str], Sequence[str]], Mapping[str, torch.Tensor]]
"""From what was captured, and the modules whose inputs and outputs were asked for, to tensors."""


class Teacher:
    """Makes products of a model's activations: a supplier's function, for one order or many.

    >>> teacher = Teacher(model, contract, batches)
    >>> teacher.supplier("tcp://broker:5556", batch=16).run()

    An order names what to capture: ``inputs[layers.3]|outputs[layers.3]``, or a name that
    ``names`` gives to it. The forward stops at the last module that was asked for. Orders that come
    together are made in one forward, whatever layers they want.

    An order that cannot be made fails with what was wrong: an unknown module with the nearest
    three, a model that raised with its text. The others of the same call are made all the same.

    :param model: put into ``eval``, and run without gradients. Of a ``DistributedDataParallel`` it
        is the module within, so that a rank waits for no other. Compile it after this, with
        ``model.compile()``.
    :param contract: what a product is. The first tensor of each module and side that was asked for,
        inputs before outputs, are the contract's tensors in their order; one of another float type
        is converted.
    :param batches: either what gives batches, one after another, for products that are any next
        sample; it is begun again when it ends. Or a function of a list of indices that gives the
        batch with a row for each, for products with a number in their name. A batch is a tensor, a
        tuple of arguments, or a mapping of them.
    :param early_exit: stop a forward at the last module that was asked for.
    :param names: ``{pattern: template}`` of further names, as ``{r"layer_(\\d+)":
        r"inputs[layers.\\1]|outputs[layers.\\1]"}``. A group ``(?P<index>...)`` is the number of
        the sample.
    :param by_row: a product is a row of a batch, the first dimension of every tensor; else it is
        the whole batch.
    :param keep: batches whose captures are kept, for rows that were not ordered yet and for orders
        of other layers. Each product meets each row of them once, in order.
    :param together: products that every forward captures as well, so that an order of one of them
        finds it made when its batch was run for another.
    :param take: in place of the contract's order: from what was captured, and the names of the
        modules whose inputs and outputs were asked for, to the contract's tensors, by name. An
        order for which it returns anything else fails with :class:`~entrepot.errors.WrongTake`.
    :param device: where batches go; by default where the model's first parameter is.
    :param autocast: the dtype of ``torch.autocast``; without it, there is none.
    :ivar forwards: how many there were.
    :raises ConfigurationError: an argument cannot be; a name in ``together`` that cannot be read or
        a module that is not there raise what an order for it would.
    """

    def __init__(
        self,
        model: nn.Module,
        contract: Contract,
        batches: Iterable[Any] | Callable[[list[int]], Any],
        *,
        early_exit: bool = True,
        names: Mapping[str, str] | None = None,
        by_row: bool = True,
        keep: int = 1,
        together: Iterable[str] = (),
        take: Take | None = None,
        device: torch.device | str | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        checked_kind("model", model, nn.Module, "it is a torch.nn.Module")
        checked_kind("contract", contract, Contract, "Contract.from_yaml(file) makes one")
        if autocast is not None:
            checked_kind("autocast", autocast, torch.dtype, "such as torch.bfloat16")
        self.contract = contract
        self.forwards = 0
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._catcher = ModelIOCatcher(inner.eval())
        self._early_exit = early_exit
        self._names = Names(names or {})
        self._by_row = by_row
        if take is not None:
            checked_callable("take", take)
        self._take = take
        if device is None:
            device = next((parameter.device for parameter in inner.parameters()), "cpu")
        self._device = torch.device(device)
        self._autocast = autocast
        keep = checked_int("keep", keep, 0, MAX_KEEP)
        self._batches = _batches_of(batches, by_row, keep)
        self._lock = threading.Lock()
        together = checked_several("together", together)
        self._together = [self._known(product_id).modules for product_id in together]

    # --- serving ------------------------------------------------------------------------

    @property
    def patterns(self) -> list[str]:
        """What a supplier registers: every specification, and ``names``."""
        return self._names.patterns

    def supplier(self, endpoint: str, *, batch: int | None = None, **options: Any) -> Supplier:
        """A supplier of everything that this teacher makes, under its contract.

        :param batch: orders in one call, and so in one forward.
        :param options: of :class:`~entrepot.market.supplier.Supplier`.
        """
        return Supplier(
            endpoint,
            dict.fromkeys(self.patterns, self),
            batch=batch,
            contracts=dict.fromkeys(self.patterns, self.contract),
            **options,
        )

    def __call__(self, work: Any, out: Any) -> Any:
        """A supplier's function: one order and its slot, or a list of each.

        :returns: the bytes of the product; for a list, as many numbers, or exceptions.
        """
        with self._lock:
            if not isinstance(work, Work):
                return self._serve(work, out)
            answer = self._serve([work], [out])[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def product(self, product_id: str) -> bytes:
        """One product, without a market."""
        out = memoryview(bytearray(self.contract.nbytes))
        nbytes: int = self(Work("", product_id, len(out)), out)
        return bytes(out[:nbytes])

    def _serve(self, works: Sequence[Work], outs: Sequence[memoryview]) -> list[int | Exception]:
        answers: dict[int, int | Exception] = {}
        known: list[tuple[int, Asked]] = []
        for number, work in enumerate(works):
            try:
                known.append((number, self._known(work.product_id)))
            except Exception as error:
                answers[number] = _told(error)
        orders = []
        places = self._batches.place([asked for _, asked in known])
        for (number, asked), place in zip(known, places, strict=True):
            if isinstance(place, Exception):
                answers[number] = _told(place)
            else:
                orders.append(_Order(number, asked, *place, outs[number]))
        for forward, group in _by(orders, lambda order: order.forward).items():
            answers.update(self._make(forward, group))
            self._batches.made(forward)
        return [answers[number] for number in range(len(works))]

    def _known(self, product_id: str) -> Asked:
        """What is asked for, of modules that are there."""
        asked = self._names.asked(product_id)
        with self._catcher(list(asked.inputs), list(asked.outputs)):
            return asked

    def _make(self, forward: Forward, orders: list[_Order]) -> dict[int, int | Exception]:
        """Run what is needed of one batch, and write all that was ordered of it."""
        kinds = _by(orders, lambda order: order.asked)
        together = [] if forward.alone else self._together
        failure = self._run(forward, [*kinds, *together])
        if failure is not None and len(kinds) + len(together) > 1:
            # One of them is to blame, and the others are not to suffer for it.
            forward.alone = True
            answers: dict[int, int | Exception] = {}
            for asked, same in kinds.items():
                other = self._batches.apart(forward, asked)
                answers.update(self._written(other, same, self._run(other, [asked])))
            return answers
        return self._written(forward, orders, failure)

    def _written(
        self, forward: Forward, orders: list[_Order], failure: Exception | None
    ) -> dict[int, int | Exception]:
        if failure is None:
            return {order.number: self._write(forward, order) for order in orders}
        for order in orders:
            self._batches.failed(order.forward, order.asked)
        return {order.number: failure for order in orders}

    def _write(self, forward: Forward, order: _Order) -> int | Exception:
        try:
            values = self._tensors(forward, order.asked)
            if self._by_row:
                row = order.row if order.asked.index is None else forward.samples[order.asked.index]
                values = {name: tensor[row] for name, tensor in values.items()}
            return self.contract.encode_into(order.out, **values)
        except Exception as error:
            return _told(error)

    # --- the forward --------------------------------------------------------------------

    def _run(self, forward: Forward, kinds: Iterable[Asked]) -> Exception | None:
        """Capture what of ``kinds`` is not yet, in one forward; what went wrong, if it did."""
        kinds = [asked.modules for asked in kinds]
        if all(forward.has(asked) for asked in kinds):
            return None
        kinds.append(forward.modules)
        inputs = list(dict.fromkeys(name for asked in kinds for name in asked.inputs))
        outputs = list(dict.fromkeys(name for asked in kinds for name in asked.outputs))
        try:
            forward.load()
            args, kwargs = _arguments(mapped(forward.batch, self._moved))
            with (
                self._catcher(inputs, outputs, early_exit=self._early_exit) as captured,
                torch.no_grad(),
                self._cast(),
            ):
                self._catcher.run(*args, **kwargs)
        except Exception as error:
            return _told(error)
        self.forwards += 1
        forward.captured = captured
        forward.modules = Asked(tuple(inputs), tuple(outputs))
        forward.taken.clear()
        return None

    def _cast(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._autocast)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device)

    def _tensors(self, forward: Forward, asked: Asked) -> Mapping[str, torch.Tensor]:
        """The contract's tensors, of the whole batch."""
        kind = asked.modules
        taken = forward.taken.get(kind)
        if taken is None:
            assert forward.captured is not None
            with torch.no_grad():
                take = self._take or self._in_order  # not kept: it would keep this object
                given = take(forward.captured, kind.inputs, kind.outputs)
                if take is self._take:
                    _check_taken(given, self.contract.names)
                taken = {name: self._converted(name, value) for name, value in given.items()}
            for name, tensor in taken.items():
                if self._by_row and (not tensor.ndim or tensor.shape[0] != forward.rows):
                    raise ContractError(
                        f"tensor {name!r} has shape {list(tensor.shape)}, expected "
                        f"{forward.rows} rows, as its batch has; give Teacher by_row=False for "
                        f"products that are whole batches, or `take` to bring it into shape"
                    )
            forward.taken[kind] = taken
        return taken

    def _converted(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if value.is_floating_point() and name in self.contract.names:
            dtype = getattr(torch, self.contract.spec(name).dtype, None)
            if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
                return _as_float(name, value, dtype)
        return value

    def _in_order(
        self, captured: Captured, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Mapping[str, torch.Tensor]:
        found = []
        for side, names in ((INPUTS, inputs), (OUTPUTS, outputs)):
            for name in names:
                first = next(tensors(captured[name][side][0]), None)
                if first is None:
                    raise CaptureError(
                        f"the {side} of module {name!r} have no tensor in them; ask for another, "
                        f"or give Teacher `take`"
                    )
                found.append(first)
        names = self.contract.names
        if len(found) != len(names):
            raise ContractError(
                f"inputs of {len(inputs)} modules and outputs of {len(outputs)} were asked for, "
                f"and the contract has {len(names)} tensors, {', '.join(names) or 'none'}; ask "
                f"for as many, or give Teacher `take`"
            )
        return dict(zip(names, found, strict=True))


@dataclass(frozen=True, slots=True)
class _Order:
    """An order of a call: its place among the others, in a batch, and where it is written."""

    number: int
    asked: Asked
    forward: Forward
    row: int
    out: memoryview


def _check_taken(given: object, names: Sequence[str]) -> None:
    """Refuse what is not a tensor for each of ``names``.

    :raises WrongTake: it is not.
    """
    wanted = f"return a mapping of {', '.join(map(repr, names)) or 'nothing'} to torch tensors"
    if not isinstance(given, Mapping):
        hint = "; is there a `return` in it?" if given is None else ""
        raise WrongTake(f"Teacher's `take` returned {shown(given)}; {wanted}{hint}")
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            raise WrongTake(f"Teacher's `take` returned {shown(value)} for {shown(name)}; {wanted}")
    if set(given) != set(names):
        has = ", ".join(map(shown, list(given)[:20])) or "nothing"
        raise WrongTake(f"Teacher's `take` returned a mapping that has {has}; {wanted}")


def _by(orders: Iterable[_Order], key: Callable[[_Order], K]) -> dict[K, list[_Order]]:
    """Orders that are alike together, in the order in which the first of each came."""
    groups: dict[K, list[_Order]] = {}
    for order in orders:
        groups.setdefault(key(order), []).append(order)
    return groups


def _as_float(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``value`` in another float type, if that has numbers of this size.

    :raises ContractError: it has not.
    """
    converted = value.to(dtype)
    kind = torch.finfo(dtype)
    if kind.max < torch.finfo(value.dtype).max:
        # What is too large becomes infinite, no number, or the largest: as torch's release has it.
        size, back = value.abs(), converted.float()
        near = (size <= kind.max * (1 + kind.eps / 2)) & back.isfinite()
        lost = ~(near | value.isnan() | (value.isinf() & back.isinf()))
        if bool(lost.any()):
            raise ContractError(
                f"tensor {name!r} has a value of {float(size[lost].max()):.3g}, and the contract's "
                f"{str(dtype).removeprefix('torch.')} ends at {kind.max:.3g}; choose a wider type, "
                f"or scale it in Teacher's `take`"
            )
    return converted


def _told(error: Exception) -> Exception:
    """An error that may be kept: its frames would keep every tensor that they knew."""
    logger.debug("an order failed", exc_info=error)
    return error.with_traceback(None)


def _batches_of(batches: Any, by_row: bool, keep: int) -> Batches:
    if isinstance(batches, Iterable):
        return Stream(batches, by_row, keep)
    if callable(batches):
        return Indexed(batches, by_row, keep)
    raise ConfigurationError(
        f"batches are what gives them one after another, such as a DataLoader, or a function from "
        f"a list of indices to a batch, got {shown(batches)}"
    )


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model is called with."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    return (batch,), {}
