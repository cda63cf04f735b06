"""Contracts: the way of tensors into a product and back, and every way to be refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrepot.contract import HEADER_NBYTES, MAX_ALIGN, Contract
from entrepot.errors import ContractError
from entrepot.tensors import DTYPES, TensorSpec

TORCH_DTYPES = {name: getattr(torch, "uint8" if name == "bytes" else name) for name in DTYPES}


# --- round trips ------------------------------------------------------------------------


@st.composite
def specs(draw: st.DrawFn, name: str) -> tuple[TensorSpec, tuple[int, ...]]:
    """A spec, and a shape that fits it."""
    shape: list[int] = draw(st.lists(st.integers(0, 4), max_size=4))
    sizes = list(shape)
    limit = None
    is_ragged: bool = draw(st.booleans())
    if shape and is_ragged:
        ragged = draw(st.integers(0, len(shape) - 1))
        limit = draw(st.integers(shape[ragged], 6))
        sizes[ragged] = -1
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    return TensorSpec(name, sizes, dtype, limit), tuple(shape)


@st.composite
def contracts(draw: st.DrawFn) -> tuple[Contract, dict[str, np.ndarray[Any, Any]]]:
    """A contract, and arrays that fit it, of random bits (bools excepted)."""
    count = draw(st.integers(0, 4))
    drawn = [draw(specs(f"t{index}")) for index in range(count)]
    arrays = {}
    for spec, shape in drawn:
        nbytes = int(np.prod(shape)) * spec.itemsize
        bits: np.ndarray[Any, Any] = np.frombuffer(
            draw(st.binary(min_size=nbytes, max_size=nbytes)), np.uint8
        )
        if spec.dtype == "bool":
            bits = bits & 1
        arrays[spec.name] = bits.view(DTYPES[spec.dtype]).reshape(shape)
    align = 2 ** draw(st.integers(0, 7))
    return Contract([spec for spec, _ in drawn], align=align), arrays


def same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Equal in shape, dtype and every bit; NaNs included."""
    return (left.shape, left.dtype, left.tobytes()) == (right.shape, right.dtype, right.tobytes())


@given(contracts())
def test_numpy_there_and_back(
    drawn: tuple[Contract, dict[str, np.ndarray[Any, Any]]],
) -> None:
    contract, arrays = drawn
    product = contract.encode(**arrays)
    assert len(product) <= contract.nbytes
    for copy in (True, False):
        decoded = contract.decode(product, copy=copy)
        assert list(decoded) == list(contract.names)
        for name, array in arrays.items():
            assert isinstance(decoded[name], np.ndarray)
            assert same(decoded[name], array)
            assert same(contract.decode_one(product, name, copy=copy), array)


@given(contracts())
def test_torch_there_and_back(
    drawn: tuple[Contract, dict[str, np.ndarray[Any, Any]]],
) -> None:
    contract, arrays = drawn
    product = contract.encode(**arrays)
    for copy in (True, False):
        for source in (product, bytes(product)):
            decoded = contract.decode(source, copy=copy, framework="torch")
            for spec in contract.specs:
                tensor = decoded[spec.name]
                assert tensor.dtype is TORCH_DTYPES[spec.dtype]
                assert tuple(tensor.shape) == arrays[spec.name].shape
            assert contract.encode(**decoded) == product


def strided(array: np.ndarray[Any, Any], step: int, flipped: bool) -> np.ndarray[Any, Any]:
    """An equal array whose elements lie apart, in the other order or from the end."""
    wide: np.ndarray[Any, Any] = np.zeros([step * size for size in array.shape[::-1]], array.dtype)
    apart: Any = (..., *[slice(None, None, step)] * array.ndim)
    view: np.ndarray[Any, Any] = wide[apart].T
    if flipped and array.ndim:
        view = view[::-1]
    view[...] = array
    return view


@given(contracts(), st.integers(1, 3), st.booleans())
def test_tensors_whose_elements_lie_apart(
    drawn: tuple[Contract, dict[str, np.ndarray[Any, Any]]], step: int, flipped: bool
) -> None:
    contract, arrays = drawn
    product = contract.encode(**arrays)
    apart = {name: strided(array, step, flipped) for name, array in arrays.items()}
    assert contract.encode(**apart) == product
    # torch has no negative strides.
    tensors = {
        name: torch.from_numpy(strided(array, step, False)).view(
            TORCH_DTYPES[contract.spec(name).dtype]
        )
        for name, array in arrays.items()
    }
    assert contract.encode(**tensors) == product


@given(contracts(), st.integers(0, 9), st.integers(0, 9))
def test_into_a_buffer_at_any_place(
    drawn: tuple[Contract, dict[str, np.ndarray[Any, Any]]], before: int, after: int
) -> None:
    contract, arrays = drawn
    product = contract.encode(**arrays)
    whole = bytearray(b"\xdb" * (before + len(product) + after))
    buffer = memoryview(whole)[before:]
    assert contract.encode_into(buffer, **arrays) == len(product)
    assert bytes(buffer[: len(product)]) == product
    assert whole[:before] == b"\xdb" * before
    assert whole[before + len(product) :] == b"\xdb" * after
    # From a place that is aligned to nothing, too.
    for copy in (True, False):
        tensors = contract.decode(buffer[: len(product)], copy=copy, framework="torch")
        into = bytearray(before + len(product))
        assert contract.encode_into(memoryview(into)[before:], **tensors) == len(product)
        assert into[before:] == product


@given(contracts())
def test_words_there_and_back(
    drawn: tuple[Contract, dict[str, np.ndarray[Any, Any]]],
) -> None:
    contract, _ = drawn
    again = Contract.from_dict(contract.to_dict())
    assert again == contract
    assert again.digest == contract.digest
    assert hash(again) == hash(contract)
    assert contract.difference(again) == ""


# --- the layout -------------------------------------------------------------------------


def test_the_default_is_plain_concatenation_in_order() -> None:
    contract = Contract(
        [
            TensorSpec("flag", (), "bool"),
            TensorSpec("x", (2,), "int32"),
            TensorSpec("none", (0, 3), "float64"),
            TensorSpec("y", (1, 2), "float16"),
        ]
    )
    product = contract.encode(
        flag=np.bool_(True),
        x=np.array([1, -2], np.int32),
        none=np.empty((0, 3)),
        y=np.array([[1.0, -2.0]], np.float16),
    )
    assert product.hex() == "0101000000feffffff003c00c0"
    assert contract.nbytes == len(product) == 13


def test_aligned_tensors_begin_at_multiples_with_zeros_between() -> None:
    contract = Contract(
        [TensorSpec("a", (3,), "uint8"), TensorSpec("b", (1,), "float64")], align=64
    )
    buffer = bytearray(b"\xff" * contract.nbytes)
    contract.encode_into(buffer, a=np.array([1, 2, 3], np.uint8), b=np.array([1.0]))
    assert contract.nbytes == 72
    assert buffer[:3] == b"\1\2\3"
    assert buffer[3:64] == bytes(61)
    assert np.frombuffer(buffer[64:])[0] == 1.0


def test_ragged_lengths_stand_at_the_front() -> None:
    contract = Contract(
        [
            TensorSpec("tokens", (-1,), "uint16", max_ragged=1000),
            TensorSpec("fixed", (2,), "uint8"),
            TensorSpec("rows", (2, -1), "uint8", max_ragged=3),
        ]
    )
    product = contract.encode(
        tokens=np.array([7], np.uint16),
        fixed=np.array([8, 9], np.uint8),
        rows=np.array([[1, 2], [3, 4]], np.uint8),
    )
    assert product.hex() == "010000000000000002000000000000000700080901020304"
    assert contract.nbytes == 2 * HEADER_NBYTES + 2000 + 2 + 6
    rows = contract.decode_one(product, "rows")
    assert rows.tolist() == [[1, 2], [3, 4]]


def test_big_endian_arrays_become_little() -> None:
    contract = Contract([TensorSpec("x", (2,), "int32")])
    assert contract.encode(x=np.array([1, 2], ">i4")).hex() == "0100000002000000"


def test_strided_arrays_are_laid_out_in_order() -> None:
    contract = Contract([TensorSpec("x", (3, 2), "int8")])
    array = np.arange(6, dtype=np.int8).reshape(2, 3).T
    assert list(contract.encode(x=array)) == [0, 3, 1, 4, 2, 5]
    assert list(contract.encode(x=torch.from_numpy(array))) == [0, 3, 1, 4, 2, 5]
    assert list(contract.encode(x=torch.arange(6, dtype=torch.int8).flip(0).view(2, 3).T))


# --- what is taken ----------------------------------------------------------------------


def test_shape_as_a_list_is_a_shape() -> None:
    """The peer compares a list with a tuple, and no configuration read from a file works."""
    contract = Contract.from_dict({"specs": [{"name": "x", "shape": [2, 3], "dtype": "float32"}]})
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert same(contract.decode(contract.encode(x=array))["x"], array)
    assert TensorSpec("x", [2, 3], "float32") == TensorSpec("x", (2, 3), "float32")


# What torch is copied by depends on whether its place in the product is aligned.
BY_ITSELF = Contract([TensorSpec("x", (2,), "float32")])
AFTER_A_BYTE = Contract([TensorSpec("flag", (), "uint8"), *BY_ITSELF.specs])
PLACES = [
    pytest.param(BY_ITSELF, {}, id="aligned"),
    pytest.param(AFTER_A_BYTE, {"flag": np.uint8(1)}, id="misaligned"),
]


@pytest.mark.parametrize(("contract", "others"), PLACES)
def test_gradients_do_not_keep_a_tensor_out(contract: Contract, others: dict[str, Any]) -> None:
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    for value in (tensor, tensor * 1, torch.nn.Parameter(torch.tensor([1.0, 2.0]))):
        product = contract.encode(x=value, **others)
        assert contract.decode_one(product, "x").tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("contract", "others"), PLACES)
def test_a_negated_view_is_what_it_shows(contract: Contract, others: dict[str, Any]) -> None:
    strided = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    contiguous = torch._neg_view(torch.tensor([2.0, -4.0]))
    for view in (strided, contiguous):
        assert view.is_neg()
        assert contract.decode_one(contract.encode(x=view, **others), "x").tolist() == [-2.0, 4.0]


@pytest.mark.parametrize(("contract", "others"), PLACES)
def test_a_strided_view_is_what_it_shows(contract: Contract, others: dict[str, Any]) -> None:
    for view in (torch.arange(4.0)[::2], torch.tensor(2.0).expand(2), torch.ones(2, 2).T[0]):
        product = contract.encode(x=view, **others)
        assert contract.decode_one(product, "x").tolist() == view.tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_numpy_lacks_is_the_same_bits(name: str) -> None:
    contract = Contract([TensorSpec("x", (3,), name)])
    tensor = torch.tensor([1.0, -0.5, 3.0]).to(TORCH_DTYPES[name])
    product = contract.encode(x=tensor)
    raw = contract.decode(product)["x"]
    assert raw.dtype == DTYPES[name]
    assert contract.encode(x=raw) == product
    back = contract.decode(product, framework="torch")["x"]
    assert back.float().tolist() == [1.0, -0.5, 3.0]


def test_arrays_that_only_say_how_to_become_one() -> None:
    class Other:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
            return np.array([1, 2], np.int16)

    contract = Contract([TensorSpec("x", (2,), "int16")])
    assert contract.encode(x=Other()).hex() == "01000200"


def test_bytes_are_bytes() -> None:
    contract = Contract([TensorSpec("text", (-1,), "bytes", max_ragged=100)])
    for value in (
        b"hello",
        bytearray(b"hello"),
        memoryview(b"hello"),
        np.frombuffer(b"hello", "u1"),
    ):
        product = contract.encode(text=value)
        assert contract.decode(product)["text"].tobytes() == b"hello"
    assert contract.decode(contract.encode(text=b""))["text"].tobytes() == b""
    with pytest.raises(ContractError, match="at most 100"):
        contract.encode(text=b"x" * 101)


def test_names_that_python_uses_itself() -> None:
    contract = Contract([TensorSpec(name, (), "int8") for name in ("self", "buffer", "copy")])
    tensors = {name: np.int8(index) for index, name in enumerate(contract.names)}
    product = contract.encode(**tensors)
    assert contract.encode_into(bytearray(3), **tensors) == 3
    assert [int(value) for value in contract.decode(product).values()] == [0, 1, 2]


@dataclass
class Delivered:
    data: memoryview


def test_a_product_is_whatever_has_the_bytes() -> None:
    contract = Contract([TensorSpec("x", (2,), "int16")])
    product = contract.encode(x=np.array([1, 2], np.int16))
    shapes: list[Any] = [
        product,
        bytes(product),
        memoryview(product),
        np.frombuffer(product, np.uint8),
        memoryview(product).cast("h"),
        Delivered(memoryview(product)),
    ]
    for shape in shapes:
        assert contract.decode(shape)["x"].tolist() == [1, 2]
    for wrong in ("text", 7, None, Delivered("no"), memoryview(bytes(8))[::2]):  # type: ignore[arg-type]
        with pytest.raises(ContractError):
            contract.decode(wrong)  # type: ignore[arg-type]


def test_an_empty_contract_and_an_empty_product() -> None:
    contract = Contract([])
    assert contract.nbytes == 0
    assert contract.encode() == b""
    assert contract.decode(b"") == {}


# --- copies and windows -----------------------------------------------------------------


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_copies_may_be_kept_and_changed(framework: Any) -> None:
    contract = Contract([TensorSpec("x", (2,), "float32"), TensorSpec("m", (1,), "bool")])
    product = contract.encode(x=np.array([1, 2], np.float32), m=np.array([True]))
    decoded = contract.decode(product, framework=framework)
    product[:] = bytes(len(product))
    assert decoded["x"].tolist() == [1.0, 2.0]
    assert decoded["m"].tolist() == [True]
    decoded["x"][0] = 5
    assert product[0] == 0


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_windows_see_what_is_there(framework: Any) -> None:
    contract = Contract([TensorSpec("x", (2,), "uint8")])
    product = bytearray(b"\1\2")
    decoded = contract.decode(memoryview(product).toreadonly(), copy=False, framework=framework)
    product[0] = 9
    assert decoded["x"].tolist() == [9, 2]


def test_windows_of_numpy_are_read_only_where_the_product_is() -> None:
    contract = Contract([TensorSpec("x", (2,), "uint8")])
    assert not contract.decode(b"\1\2", copy=False)["x"].flags.writeable
    assert contract.decode(bytearray(b"\1\2"), copy=False)["x"].flags.writeable
    assert contract.decode(b"\1\2")["x"].flags.writeable


def test_a_torch_window_keeps_its_memory() -> None:
    contract = Contract([TensorSpec("x", (100_000,), "uint8")])
    tensor = contract.decode(b"\7" * 100_000, copy=False, framework="torch")["x"]
    others = [bytes([index]) * 100_000 for index in range(50)]
    assert bool((tensor == 7).all())
    del others


def test_a_torch_tensor_is_never_misaligned() -> None:
    contract = Contract([TensorSpec("a", (1,), "uint8"), TensorSpec("b", (2,), "float64")])
    product = contract.encode(a=np.array([1], np.uint8), b=np.array([1.0, 2.0]))
    tensor = contract.decode(product, copy=False, framework="torch")["b"]
    assert tensor.data_ptr() % 8 == 0
    assert tensor.tolist() == [1.0, 2.0]


def test_a_byte_that_is_no_bool_becomes_one() -> None:
    contract = Contract([TensorSpec("m", (3,), "bool")])
    decoded = contract.decode(b"\0\1\2")
    assert decoded["m"].view(np.uint8).tolist() == [0, 1, 1]
    assert contract.decode(b"\0\1\2", framework="torch")["m"].tolist() == [False, True, True]


# --- what is refused --------------------------------------------------------------------

XY = Contract([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (), "int64")])
GOOD: dict[str, Any] = {"x": np.zeros((2, 3), np.float32), "y": np.int64(1)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, r"'x' has shape \[2, 4\], expected \[2, 3\]"),
        ({"x": np.zeros(6, np.float32)}, r"'x' has shape \[6\], expected \[2, 3\]"),
        ({"x": np.zeros((2, 3))}, r"'x' has dtype float64, expected float32"),
        ({"x": torch.zeros((2, 3), dtype=torch.bfloat16)}, r"dtype bfloat16, expected float32"),
        ({"x": torch.zeros((3, 2))}, r"'x' has shape \[3, 2\], expected \[2, 3\]"),
        ({"x": torch.zeros((2, 3)).to_sparse()}, r"'x' is sparse"),
        ({"x": torch.zeros((2, 3), device="meta")}, r"'x' is sparse, quantized or without data"),
        ({"x": [[0.0] * 3] * 2}, r"'x' is given as a list; .*np.asarray\(value, 'float32'\)"),
        ({"x": b"\0" * 24}, r"'x' is given as a bytes"),
        ({"x": None}, r"'x' is given as a NoneType"),
        ({"x": np.array([None] * 6).reshape(2, 3)}, r"dtype object"),
        ({"y": np.array([1])}, r"'y' has shape \[1\], expected \[\]"),
        ({"z": np.int64(1)}, r"no tensor 'z' in it"),
    ],
)
def test_tensors_that_are_not_the_contracts(change: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        XY.encode(**{**GOOD, **change})
    buffer = bytearray(b"\xdb" * XY.nbytes)
    with pytest.raises(ContractError, match=said):
        XY.encode_into(buffer, **{**GOOD, **change})
    assert buffer == b"\xdb" * XY.nbytes


def test_tensors_that_are_missing() -> None:
    with pytest.raises(ContractError, match=r"has x, y: tensor 'y' was not given"):
        XY.encode(x=GOOD["x"])
    with pytest.raises(ContractError, match=r"no tensor 'X' in it; tensor 'x' was not given"):
        XY.encode(X=GOOD["x"], y=GOOD["y"])


def test_products_that_are_not_the_contracts() -> None:
    product = bytes(XY.encode(**GOOD))
    with pytest.raises(ContractError, match=r"too short: 31 bytes .* 32"):
        XY.decode(product[:-1])
    with pytest.raises(ContractError, match=r"too long: 33 bytes .* 32 .*x: float32 \[2, 3\]"):
        XY.decode(product + b"\0")
    with pytest.raises(ContractError, match="too short"):
        XY.decode_one(b"", "x")
    with pytest.raises(ContractError, match="no tensor 'z'; it has x, y"):
        XY.decode_one(product, "z")
    with pytest.raises(ContractError, match="'jax'"):
        XY.decode(product, framework="jax")  # type: ignore[call-overload]


def test_ragged_products_that_lie() -> None:
    contract = Contract([TensorSpec("x", (-1, 2), "int16", max_ragged=4)])
    product = contract.encode(x=np.zeros((3, 2), np.int16))
    for length, said in (
        (5, "5 long"),
        (2**64 - 1, "max_ragged is 4"),
        (4, "too short"),
        (2, "too long"),
    ):
        with pytest.raises(ContractError, match=said):
            contract.decode(length.to_bytes(8, "little") + bytes(product[8:]))
    with pytest.raises(ContractError, match="too few for the 8 bytes of its header"):
        contract.decode(product[:7])
    with pytest.raises(ContractError, match=r"shape \[5, 2\], expected \[-1, 2\] with at most 4"):
        contract.encode(x=np.zeros((5, 2), np.int16))


def test_buffers_that_cannot_take_the_product() -> None:
    with pytest.raises(ContractError, match="32 bytes does not fit in a buffer of 31"):
        XY.encode_into(bytearray(31), **GOOD)
    with pytest.raises(ContractError, match="read-only"):
        XY.encode_into(bytes(32), **GOOD)


# For what the type checker would refuse as well.
spec_of: Any = TensorSpec
contract_of: Any = Contract


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: spec_of("x", (-2,), "int8"), r"shape \[-2\]; sizes are 0 or more"),
        (lambda: spec_of("x", (1.5,), "int8"), "whole numbers"),
        (lambda: spec_of("x", ("2",), "int8"), "whole numbers"),
        (lambda: spec_of("x", (True,), "int8"), "0 or more"),
        (lambda: spec_of("x", "23", "int8"), "a list of sizes"),
        (lambda: spec_of("x", 3, "int8"), "a list of sizes"),
        (lambda: spec_of("x", None, "int8"), "a list of sizes"),
        (lambda: spec_of("x", (2**62, 2), "int8"), "more than any machine"),
        (lambda: spec_of("x", (2,), "complex64"), "'complex64'; known are float64"),
        (lambda: spec_of("x", (2,), None), "known are"),
        (lambda: spec_of("", (2,), "int8"), "not empty"),
        (lambda: spec_of(7, (2,), "int8"), "is a string"),
        (lambda: spec_of("x", (-1, -1), "int8", max_ragged=2), "2 ragged dimensions"),
        (lambda: spec_of("x", (-1,), "int8"), "max_ragged None; give the most"),
        (lambda: spec_of("x", (-1,), "int8", max_ragged=-1), "max_ragged -1"),
        (lambda: spec_of("x", (-1,), "int8", max_ragged=True), "max_ragged True"),
        (lambda: spec_of("x", (2,), "int8", max_ragged=2), "without a -1"),
        (lambda: contract_of([spec_of("x", (), "int8")] * 2), "two tensors are called 'x'"),
        (lambda: contract_of([], align=0), "align is 0"),
        (lambda: contract_of([], align=48), "align is 48"),
        (lambda: contract_of([], align=2 * MAX_ALIGN), "align is 8192"),
        (lambda: contract_of([], align="64"), "align is '64'"),
        (lambda: contract_of("x"), "a list of tensors"),
        (lambda: contract_of({"x": 1}), "a list of tensors"),
        (lambda: contract_of([3]), "a tensor's spec is a mapping, got int"),
        (lambda: contract_of.from_dict([]), "a contract is a mapping, got list"),
        (lambda: contract_of.from_dict({}), "lacks specs"),
        (lambda: contract_of.from_dict({"specs": None}), "list of tensors, got NoneType"),
        (lambda: contract_of.from_dict({"specs": [], "sepcs": []}), "has no sepcs; it has specs"),
        (lambda: contract_of.from_dict({"specs": [{"name": "x"}]}), "lacks dtype, shape"),
        (
            lambda: contract_of.from_dict(
                {"specs": [{"name": "x", "shape": [], "dtype": "int8", "unit": "m"}]}
            ),
            "has no unit",
        ),
    ],
)
def test_contracts_that_cannot_be(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ContractError, match=said):
        make()


# --- digests and differences ------------------------------------------------------------


def test_the_digest_is_for_ever() -> None:
    assert XY.digest == "cb5a7d82d4cd4fefdcea3ce4d9978aae"
    assert Contract([]).digest == "e21a16e6838d11d40c6fc9427aea8554"


@pytest.mark.parametrize(
    "other",
    [
        Contract([*reversed(XY.specs)]),
        Contract(XY.specs, align=64),
        Contract(XY.specs[:1]),
        Contract([TensorSpec("x", (3, 2), "float32"), XY.specs[1]]),
        Contract([TensorSpec("x", (2, 3), "bfloat16"), XY.specs[1]]),
        Contract([TensorSpec("X", (2, 3), "float32"), XY.specs[1]]),
        Contract([TensorSpec("x", (2, -1), "float32", 3), XY.specs[1]]),
    ],
)
def test_another_contract_has_another_digest_and_a_difference(other: Contract) -> None:
    assert other != XY
    assert other.digest != XY.digest
    assert XY.difference(other)
    assert other.difference(XY)


def test_a_difference_reads_well() -> None:
    other = Contract(
        [TensorSpec("x", (2, -1), "bfloat16", 8), TensorSpec("z", (), "bool")], align=8
    )
    assert XY.difference(other).splitlines() == [
        "tensor x: dtype float32 here, bfloat16 there; shape [2, 3] here, [2, -1] there; "
        "max_ragged None here, 8 there",
        "tensor y: int64 [] is only here",
        "tensor z: bool [] is only there",
        "align 1 here, 8 there",
    ]
    assert XY.difference(Contract([*reversed(XY.specs)])) == "order x, y here, y, x there"
    assert XY.difference(Contract(XY.specs[1:])) == "tensor x: float32 [2, 3] is only here"
    moved = Contract([XY.specs[1], TensorSpec("z", (), "bool"), XY.specs[0]])
    assert XY.difference(moved).splitlines() == [
        "tensor z: bool [] is only there",
        "order x, y here, y, x there",
    ]
    assert XY != "something else"


def test_dtypes_of_numpy_and_torch_are_taken() -> None:
    for dtype in ("float32", np.float32, np.dtype("float32"), torch.float32):
        assert TensorSpec("x", (), dtype).dtype == "float32"
    assert TensorSpec("x", (), torch.bfloat16).dtype == "bfloat16"
    assert TensorSpec("x", (), bool).dtype == "bool"


# --- where torch is not -----------------------------------------------------------------


def test_torch_is_not_imported_until_it_is_asked_for() -> None:
    script = """
import sys
import numpy as np
from entrepot.contract import Contract
contract = Contract.from_dict({"specs": [{"name": "x", "shape": [2], "dtype": "bfloat16"}]})
product = contract.encode(x=np.zeros(2, np.uint16))
contract.decode(product), contract.decode_one(product, "x"), contract.digest, repr(contract)
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    contract.decode(product, framework="torch")
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("MissingExtra decoding to torch tensors needs torch")
    assert "entrepot[torch]" in done.stdout
