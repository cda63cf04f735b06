"""Federated averaging (McMahan et al., 2017): one set of weights out of several clients'."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from entrepot.arguments import shown
from entrepot.errors import FederationError, MissingExtra

try:
    import numpy as np
except ImportError as error:
    raise MissingExtra(
        "averaging needs numpy, which is not installed; pip install 'entrepot[study]'"
    ) from error

State = Mapping[str, Any]
"""What ``state_dict()`` gives: arrays or tensors by name, or mappings of such."""

Path = tuple[str, ...]
"""The names that lead to an entry of a state."""

_WIDE = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
"""Floats that numpy knows only by the name that ml_dtypes gives them."""


def fedavg(states: Sequence[State], sizes: Sequence[float] | None = None) -> dict[str, Any]:
    """The mean of ``states``, each weighing as much as its size.

    Floating and complex numbers are averaged in float64 (complex128) and cast back to their own
    type. Whole numbers and truth values become the largest of the clients': the counter of
    batches in a batch normalisation is the only one that networks have.

    :param states: a client each: arrays or tensors by name, all with the same names, shapes and
        dtypes. None is changed.
    :param sizes: how many samples each client saw; equal when left out. A size of 0 weighs
        nothing, and what comes with it is checked all the same.
    :return: tensors where the first client has tensors, on its devices; arrays where it has
        arrays. Nothing is shared with what was given.
    :raises FederationError: there are no clients, or names, shapes or dtypes differ, a size is
        negative or all are 0, or an update is not finite; the message names client and key.
    """
    if isinstance(states, Mapping) or not isinstance(states, Sequence):
        raise FederationError(f"states is a {type(states).__name__}; give a list, a client each")
    if not states:
        raise FederationError("there are no clients to average")
    weights = checked_sizes(sizes, range(len(states)))
    averaging = Averaging(dict(enumerate(weights)))
    for client, state in enumerate(states):
        averaging.add(client, dict(entries_of(state, client)))
    return nested(states[0], averaging.means())


def checked_sizes(sizes: Sequence[float] | None, clients: Sequence[int]) -> list[float]:
    """What each client weighs, the heaviest 1.

    :raises FederationError: they cannot be sizes.
    """
    if sizes is None:
        return [1.0] * len(clients)
    given = list(sizes)
    if len(given) != len(clients):
        raise FederationError(f"there are {len(given)} sizes for {len(clients)} clients")
    for client, size in zip(clients, given, strict=True):
        if not is_size(size):
            raise FederationError(
                f"client {client} has size {shown(size)}; it is how many samples it saw, 0 or more"
            )
    found = [float(size) for size in given]
    if not any(found):
        raise FederationError(f"all {len(clients)} sizes are 0, so there is nothing to weigh by")
    largest = max(found)  # so that no sum of sizes overflows
    return [size / largest for size in found]


def is_size(size: object) -> bool:
    """Whether it is a number, finite as a float, and 0 or more."""
    if type(size) is bool or not isinstance(size, Real):
        return False
    try:
        number = float(size)
    except OverflowError:  # a whole number that no float holds
        return False
    return math.isfinite(number) and number >= 0


def entries_of(state: object, client: int, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The arrays and tensors of a state, by the names that lead to them.

    :raises FederationError: something else is among them.
    """
    if not isinstance(state, Mapping):
        raise FederationError(
            f"client {client} sent a {type(state).__name__}; send what state_dict() gives"
        )
    for name, value in state.items():
        here = (*path, str(name))
        if isinstance(value, Mapping):
            yield from entries_of(value, client, here)
        elif is_tensor(value) or isinstance(value, np.ndarray | np.generic):
            yield here, value
        else:
            raise FederationError(
                f"client {client}, key {'.'.join(here)!r}: a {type(value).__name__} cannot be "
                f"averaged; send arrays or tensors"
            )


def nested(like: State, values: Mapping[Path, Any], path: Path = ()) -> dict[str, Any]:
    """``values`` as the state ``like`` has them: the inverse of :func:`entries_of`."""
    made: dict[str, Any] = {}
    for name, value in like.items():
        here = (*path, str(name))
        made[name] = nested(value, values, here) if isinstance(value, Mapping) else values[here]
    return made


class Averaging:
    """The mean of clients that come one after the other, so that one at a time is in memory.

    :param weights: what each client weighs, by its number.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = weights
        self._first = -1
        self._kinds: dict[Path, Kind] = {}
        self._means: dict[Path, _Mean] = {}

    def add(self, client: int, entries: Mapping[Path, Any]) -> None:
        """Take in what a client sent.

        :raises FederationError: it does not go with what came before, or is not finite.
        """
        kinds = kinds_of(entries, client)
        if not self._means:
            if not kinds:
                raise FederationError(f"client {client} sent a state without keys; send a model")
            self._first, self._kinds = client, kinds
            self._means = {path: _Mean(path, kind) for path, kind in kinds.items()}
        check_alike(self._kinds, f"client {self._first}", kinds, f"client {client}")
        check_finite(entries, kinds, client)
        for path, value in entries.items():
            self._means[path].add(value, self._weights[client])

    def means(self) -> dict[Path, Any]:
        """The mean of each entry, on the first client's devices.

        :raises FederationError: one of them overflows.
        """
        return {path: mean.result() for path, mean in self._means.items()}


@dataclass(frozen=True)
class Kind:
    """What has to be the same for all clients, and where the first one's lies."""

    shape: list[int]
    dtype: str
    kind: str
    is_mean: bool = field(compare=False)
    device: Any = field(compare=False, default=None)


def kinds_of(entries: Mapping[Path, Any], client: int) -> dict[Path, Kind]:
    """What each entry is.

    :raises FederationError: one cannot be averaged.
    """
    return {path: _kind(value, client, ".".join(path)) for path, value in entries.items()}


def check_finite(entries: Mapping[Path, Any], kinds: Mapping[Path, Kind], client: int) -> None:
    """:raises FederationError: one of them is not."""
    for path, value in entries.items():
        if kinds[path].is_mean and not _is_finite(value):
            raise FederationError(
                f"client {client}, key {'.'.join(path)!r}: the update is not finite; leave the "
                f"client out"
            )


def _kind(value: Any, client: int, key: str) -> Kind:
    dtype = str(value.dtype).removeprefix("torch.")
    if not is_tensor(value):
        if value.dtype.kind not in "biufc" and value.dtype.name not in _WIDE:
            raise FederationError(
                f"client {client}, key {key!r}: an array of dtype {value.dtype} cannot be averaged"
            )
        return Kind(list(value.shape), dtype, "array", value.dtype.kind not in "biu")
    import torch

    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise FederationError(
            f"client {client}, key {key!r}: a tensor that is sparse, quantized or without data "
            f"cannot be averaged; send a dense one"
        )
    is_mean = value.is_floating_point() or value.is_complex()
    return Kind(list(value.shape), dtype, "tensor", is_mean, value.device)


def check_alike(
    first: Mapping[Path, Kind], one: str, second: Mapping[Path, Kind], other: str
) -> None:
    """:raises FederationError: names, shapes, dtypes or frameworks differ."""
    for path in [*first, *second]:
        if path not in first or path not in second:
            lacking, having = (other, one) if path in first else (one, other)
            raise FederationError(
                f"{lacking} has no key {'.'.join(path)!r}, and {having} has; all must send the "
                f"same model"
            )
    for path, kind in second.items():
        wanted = first[path]
        for what in ("shape", "dtype", "kind"):
            if getattr(kind, what) != getattr(wanted, what):
                raise FederationError(
                    f"{other}, key {'.'.join(path)!r}: {what} {getattr(kind, what)}, and {one} "
                    f"has {getattr(wanted, what)}"
                )


class _Mean:
    """The weighted mean of one entry, or the largest where it is whole numbers.

    One client after the other, so that equal updates stay what they are.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self._key = ".".join(path)
        self._kind = kind
        self._total = 0.0
        self._dtype: Any = None
        self._so_far: Any = None

    def add(self, value: Any, weight: float) -> None:
        if self._kind.kind == "tensor":
            value = value.detach()
        self._dtype = value.dtype
        if not self._kind.is_mean:
            self._take_largest(value)
            return
        if not weight and self._so_far is not None:
            return
        update = self._widened(value)
        if not self._total:  # none has weighed anything so far
            self._so_far = update
            self._total = weight
        else:
            self._total += weight
            with np.errstate(over="ignore", invalid="ignore"):  # result says so
                self._so_far = self._so_far + (update - self._so_far) * (weight / self._total)

    def _take_largest(self, value: Any) -> None:
        if self._so_far is None:
            self._so_far = value.clone() if self._kind.kind == "tensor" else np.array(value)
        elif self._kind.kind == "tensor":
            import torch

            self._so_far = torch.maximum(self._so_far, value.to(self._so_far.device))
        else:
            self._so_far = np.maximum(self._so_far, value)

    def _widened(self, value: Any) -> Any:
        if self._kind.kind == "array":
            return np.array(value, np.complex128 if value.dtype.kind == "c" else np.float64)
        import torch

        # Not every device has float64; the mean is made where all do.
        device = self._kind.device
        device = device if device.type in ("cpu", "cuda") else torch.device("cpu")
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.to(device=device, dtype=wide, copy=True)

    def result(self) -> Any:
        if not self._kind.is_mean:
            return self._so_far
        if not _is_finite(self._so_far):
            raise FederationError(
                f"key {self._key!r}: the updates are so large that their mean overflows"
            )
        if self._kind.kind == "array":
            return np.asarray(self._so_far).astype(self._dtype)
        return _rounded_once(self._so_far, self._dtype).to(self._kind.device)


def _rounded_once(value: Any, dtype: Any) -> Any:
    """A tensor of float64 in another dtype. torch goes to half by way of float32, and so rounds
    twice; numpy does not."""
    import torch

    if dtype is not torch.float16:
        return value.to(dtype=dtype)
    return torch.from_numpy(np.asarray(value.cpu().numpy().astype(np.float16)))


def _is_finite(value: Any) -> bool:
    if is_tensor(value):
        import torch

        # Not every float of torch's knows what finite is.
        value = value.detach()
        if value.is_floating_point() and value.element_size() == 1:
            value = value.to(torch.float32)
        return bool(torch.isfinite(value).all())
    if value.dtype.kind not in "fc":
        value = value.astype(np.float64)
    return bool(np.isfinite(value).all())


def is_tensor(value: object) -> bool:
    """Whether it is one of torch's; torch is not loaded to see."""
    torch = sys.modules.get("torch")  # nobody has a tensor without having imported it
    return torch is not None and isinstance(value, torch.Tensor)
