"""Federated averaging: what is averaged, what is kept, what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from entrepot.errors import FederationError
from entrepot.federation import fedavg

SIZES = st.integers(0, 10_000)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


@st.composite
def clients(draw: st.DrawFn) -> tuple[list[dict[str, np.ndarray]], list[int]]:
    """States of one model, and sizes."""
    count = draw(st.integers(1, 5))
    names = draw(st.lists(st.text(max_size=4), min_size=1, max_size=3, unique=True))
    states: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    for name in names:
        dtype = draw(FLOATS)
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=2, max_side=3))
        width = {np.float16: 16, np.float32: 32, np.float64: 64}[dtype]
        finite = st.floats(-1e4, 1e4, width=width)  # type: ignore[arg-type]  # one of the three
        for state in states:
            state[name] = draw(arrays.arrays(dtype, shape, elements=finite))
    sizes = draw(st.lists(SIZES, min_size=count, max_size=count).filter(any))
    return states, sizes


@given(clients())
def test_the_average_is_the_weighted_mean_in_each_ones_own_type(
    drawn: tuple[list[dict[str, np.ndarray]], list[int]],
) -> None:
    states, sizes = drawn
    before = [{name: array.copy() for name, array in state.items()} for state in states]
    merged = fedavg(states, sizes)
    assert list(merged) == list(states[0])
    for name, array in merged.items():
        # With more bits than what is tested has, else their own rounding is found.
        stacked = np.array([state[name].astype(np.longdouble) for state in states])
        wanted = np.average(stacked, axis=0, weights=np.array(sizes, np.longdouble))
        assert array.dtype == states[0][name].dtype
        assert array.shape == states[0][name].shape
        room = 2 * float(np.finfo(array.dtype).eps) * (1e4 + 1)
        assert (abs(array.astype(np.longdouble) - wanted) <= room).all()
        assert (array <= stacked.max(axis=0) + room).all()
        assert (array >= stacked.min(axis=0) - room).all()
    for state, copy in zip(states, before, strict=True):
        assert all(np.array_equal(state[name], copy[name]) for name in copy)


@given(clients())
def test_torch_and_numpy_average_to_the_same(
    drawn: tuple[list[dict[str, np.ndarray]], list[int]],
) -> None:
    states, sizes = drawn
    tensors = [{n: torch.from_numpy(np.array(a)) for n, a in state.items()} for state in states]
    by_torch, by_numpy = fedavg(tensors, sizes), fedavg(states, sizes)
    for name, array in by_numpy.items():
        assert by_torch[name].dtype == tensors[0][name].dtype
        assert np.array_equal(by_torch[name].numpy(), array)


@given(clients(), st.integers(1, 4))
def test_clients_that_agree_are_not_changed_by_rounding(
    drawn: tuple[list[dict[str, np.ndarray]], list[int]], count: int
) -> None:
    state = drawn[0][0]
    merged = fedavg([state] * count, [3, 1, 7, 2][:count])
    assert all(np.array_equal(merged[name], array) for name, array in state.items())
    assert all(not np.shares_memory(merged[name], array) for name, array in state.items())


@given(clients())
def test_a_client_of_size_nought_weighs_nothing(
    drawn: tuple[list[dict[str, np.ndarray]], list[int]],
) -> None:
    states, sizes = drawn
    heavy = [(state, size) for state, size in zip(states, sizes, strict=True) if size]
    without = fedavg([state for state, _ in heavy], [size for _, size in heavy])
    merged = fedavg(states, sizes)
    assert all(np.array_equal(merged[name], without[name]) for name in merged)


def test_sizes_weigh() -> None:
    states = [{"w": torch.tensor([10.0])}, {"w": torch.tensor([0.0])}]
    assert fedavg(states, [900, 100])["w"].item() == pytest.approx(9.0)
    assert fedavg(states)["w"].item() == 5.0
    assert fedavg(states, [0.25, 0.75])["w"].item() == 2.5
    assert fedavg(states, [1e308, 1e308])["w"].item() == 5.0
    assert fedavg(states, np.array([1, 3]))["w"].item() == 2.5  # type: ignore[arg-type]


def test_a_whole_network_with_batch_normalisation() -> None:
    nets = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(2)]
    for net, batches in zip(nets, (3, 5), strict=True):
        for _ in range(batches):
            net(torch.randn(4, 3))
    merged = fedavg([net.state_dict() for net in nets], [1, 3])
    for name in ("0.weight", "0.bias", "1.running_mean", "1.running_var"):
        one, other = (net.state_dict()[name] for net in nets)
        torch.testing.assert_close(merged[name], one * 0.25 + other * 0.75)
    assert merged["1.num_batches_tracked"].item() == 5
    assert merged["1.num_batches_tracked"].dtype is torch.int64
    nets[0].load_state_dict(merged)


@pytest.mark.parametrize("wrap", [np.array, torch.tensor])
def test_whole_numbers_and_truth_values_become_the_largest(wrap: Callable[..., Any]) -> None:
    states = [
        {"n": wrap([1, 7]), "b": wrap([True, False])},
        {"n": wrap([3, 2]), "b": wrap([False, False])},
    ]
    merged = fedavg(states, [1, 0])
    assert merged["n"].tolist() == [3, 7]
    assert merged["b"].tolist() == [True, False]
    assert merged["n"].dtype == states[0]["n"].dtype


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128]
)
def test_every_float_of_torch(dtype: torch.dtype) -> None:
    states = [{"w": torch.tensor([1.0, 2.0]).to(dtype)}, {"w": torch.tensor([3.0, 2.0]).to(dtype)}]
    merged = fedavg(states)["w"]
    assert merged.dtype is dtype
    assert merged.to(torch.complex128).tolist() == [2.0, 2.0]


def test_sums_are_made_in_float64() -> None:
    # In float32, 2**24 + 1 is 2**24: the ones would be lost.
    states = [
        {"w": torch.tensor([2.0**24])},
        *({"w": torch.tensor([1.0])} for _ in range(2**10 - 1)),
    ]
    assert fedavg(states)["w"].item() == pytest.approx((2.0**24 + 1023) / 1024, rel=1e-7)
    halves = [{"w": np.full(3, 60_000, np.float16)} for _ in range(100)]
    assert fedavg(halves)["w"].tolist() == [60_000] * 3


def test_states_may_be_nested_and_what_comes_back_is_too() -> None:
    states = [{"body": {"w": torch.ones(2) * n}, "head": {"b": torch.zeros(1)}} for n in (1, 3)]
    merged = fedavg(states)
    assert merged["body"]["w"].tolist() == [2.0, 2.0]
    assert list(merged) == ["body", "head"]


def test_gradients_are_not_averaged_along() -> None:
    merged = fedavg([{"w": torch.nn.Parameter(torch.ones(2))}])
    assert not merged["w"].requires_grad
    assert merged["w"].grad_fn is None


def test_one_client_comes_back_as_a_copy() -> None:
    for weight in (
        torch.ones(2, dtype=torch.float64),
        torch.ones(2),
        torch.ones(2, dtype=torch.int64),
    ):
        merged = fedavg([{"w": weight}], [7])["w"]
        merged += 1
        assert weight.tolist() == [1, 1]


ONE, TWO = {"w": np.ones(2)}, {"w": np.ones(3)}
REFUSED: list[tuple[str, Any, Any]] = [
    ("no clients", [], None),
    ("a list, a client each", {"w": np.ones(2)}, None),
    ("client 0 sent a list", [[1]], None),
    ("without keys", [{}], None),
    ("client 1 has no key 'b.c', and client 0 has", [{"b": {"c": np.ones(1)}}, {"b": {}}], None),
    ("client 0 has no key 'x', and client 1 has", [ONE, {**ONE, "x": np.ones(1)}], None),
    ("client 1, key 'w': shape [3], and client 0 has [2]", [ONE, TWO], None),
    ("client 1, key 'w': dtype float32", [ONE, {"w": np.ones(2, np.float32)}], None),
    ("client 1, key 'w': kind tensor", [ONE, {"w": torch.ones(2, dtype=torch.float64)}], None),
    ("client 0, key 'w': a list cannot", [{"w": [1.0]}], None),
    ("client 0, key 'w': a float cannot", [{"w": 1.0}], None),
    ("dtype <U1 cannot", [{"w": np.array(["x"])}], None),
    ("2 sizes for 1 clients", [ONE], [1, 2]),
    ("client 1 has size -1", [ONE, ONE], [1, -1]),
    ("client 0 has size nan", [ONE, ONE], [math.nan, 1]),
    ("client 0 has size inf", [ONE, ONE], [math.inf, 1]),
    ("client 0 has size '1'", [ONE], ["1"]),
    ("client 0 has size 1000", [ONE, ONE], [10**400, 1]),
    ("client 1 has size", [ONE, ONE], [1, 10**5000]),
    ("all 2 sizes are 0", [ONE, ONE], [Fraction(1, 10**400), 0]),
    ("client 0 has size True", [ONE], [True]),
    ("all 2 sizes are 0", [ONE, ONE], [0, 0.0]),
    ("client 1, key 'w': the update is not finite", [ONE, {"w": np.array([1, math.nan])}], None),
    ("client 0, key 'w': the update is not finite", [{"w": torch.tensor([math.inf])}], None),
    ("client 1, key 'w': the update is not finite", [ONE, {"w": np.array([1, math.inf])}], [1, 0]),
    ("client 0, key 'w': a tensor that is sparse", [{"w": torch.eye(2).to_sparse()}], None),
    ("client 0, key 'w': a tensor that is sparse", [{"w": torch.ones(2, device="meta")}], None),
    (
        "key 'w': the updates are so large",
        [{"w": np.array([1e308])}, {"w": np.array([-1e308])}],
        None,
    ),
]


@pytest.mark.parametrize(("said", "states", "sizes"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_averaged_is_refused_by_client_and_key(
    said: str, states: Any, sizes: Any
) -> None:
    with pytest.raises(FederationError) as refused:
        fedavg(states, sizes)
    assert said in str(refused.value)


def test_arrays_are_averaged_without_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from entrepot.federation import fedavg\n"
        "assert fedavg([{'w': np.ones(2)}, {'w': np.zeros(2)}])['w'].tolist() == [0.5, 0.5]\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
