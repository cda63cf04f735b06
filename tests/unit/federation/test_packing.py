"""States as bytes: they come back as they were, and no bytes do harm."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from entrepot.errors import FederationError
from entrepot.federation.packing import MAGIC, pack_state, unpack_state

DTYPES = ["<f2", "<f4", "<f8", ">f4", "<c8", "<c16", "|b1", "|i1", "<i8", ">i2", "<u4", "|u1"]
PATHS = st.lists(st.text(max_size=4), min_size=1, max_size=3).map(tuple)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def entries(draw: st.DrawFn) -> dict[tuple[str, ...], Any]:
    made: dict[tuple[str, ...], Any] = {}
    for path in draw(st.lists(PATHS, max_size=4, unique=True)):
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        array = draw(arrays.arrays(dtype, draw(SHAPES)))
        as_tensor = dtype.isnative and dtype.name != "uint32" and draw(st.booleans())
        made[path] = torch.from_numpy(np.array(array)) if as_tensor else array
    return made


@given(entries())
def test_a_state_comes_back_bit_for_bit(given: dict[tuple[str, ...], Any]) -> None:
    packed = bytes(pack_state(given))
    found = unpack_state(packed)
    assert list(found) == list(given)
    for path, value in given.items():
        there = found[path]
        assert isinstance(there, torch.Tensor) is isinstance(value, torch.Tensor)
        if isinstance(value, torch.Tensor):
            assert there.dtype is value.dtype
            there, value = there.numpy(), value.numpy()
        assert there.dtype == value.dtype.newbyteorder("=")
        assert there.shape == value.shape
        assert there.tobytes() == value.astype(there.dtype).tobytes()
    assert bytes(pack_state(found)) == packed, "the same state is the same blob"


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool]
)
def test_what_numpy_does_not_know_comes_back_too(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0.0, 1.0], [2.0, -3.0]]).to(dtype)
    found = unpack_state(bytes(pack_state({("w",): tensor.T})))["w",]
    assert found.dtype is dtype
    assert torch.equal(found.to(torch.complex64), tensor.T.to(torch.complex64))


def test_parameters_and_lazy_views_are_packed_as_what_they_say() -> None:
    weights = torch.nn.Parameter(torch.ones(2))
    conj = torch.tensor([1 + 2j]).conj()
    found = unpack_state(bytes(pack_state({("p",): weights, ("c",): conj})))
    assert not found["p",].requires_grad
    assert found["c",].tolist() == [1 - 2j]


GOOD = bytes(pack_state({("a", "b"): np.arange(3.0), ("c",): torch.ones(2, 2)}))


@given(st.data())
def test_damaged_bytes_are_an_error_or_a_state_and_nothing_else(data: st.DataObject) -> None:
    spoilt = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(spoilt)))
    try:
        unpack_state(bytes(spoilt[:cut]))
    except FederationError:
        pass


def said(**more: Any) -> bytes:
    entry = {"path": ["w"], "dtype": "float64", "shape": [1], "kind": "array", **more}
    header = json.dumps([entry]).encode()
    packed = MAGIC + len(header).to_bytes(8, "little") + header
    return packed + bytes(-len(packed) % 64) + bytes(8)


@example("M8[s/0]", "array")  # numpy divides by that
@example(",A", "array")
@example("a", "array")
@example("object", "array")
@example("O", "array")
@example("load", "tensor")
@example("Tensor", "tensor")
@given(st.text(max_size=8), st.sampled_from(["array", "tensor"]))
def test_no_name_of_a_dtype_is_more_than_a_name(dtype: str, kind: str) -> None:
    try:
        found = unpack_state(said(dtype=dtype, kind=kind))["w",]
    except FederationError:
        return
    assert not isinstance(found, np.ndarray) or not found.dtype.hasobject


@pytest.mark.parametrize(
    "more",
    [
        {"shape": [2]},
        {"shape": [-1]},
        {"shape": [2**62]},
        {"shape": [2**62, 2**62]},
        {"shape": None},
        {"dtype": None},
        {"kind": None, "dtype": "float32"},
        {"path": 7},
    ],
    ids=repr,
)
def test_a_header_that_cannot_be_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(FederationError, match="this is no state"):
        unpack_state(said(**more))
