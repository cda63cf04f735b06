"""Products become batches: every dtype, ragged or not, copied once and sent to another process."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrepot.contract import Contract
from entrepot.errors import ContractError
from entrepot.market.product import Product
from entrepot.tensors import DTYPES, TensorSpec
from entrepot.training.loader_batches import SENT_AT_MOST, Batch, Form, received


class Bytes:
    """A product that came."""

    product_id = "layer_3"

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = memoryview(data)


def batch_of(form: Form, products: list[bytearray]) -> Any:
    batch = Batch(form)
    for product in products:
        batch.add(cast(Product, Bytes(product)))
        product[:] = b"\xdb" * len(product)  # the slot has another product now
    return batch.finish()


SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(st.data(), st.sampled_from(sorted(DTYPES)), SHAPES, st.integers(1, 4), st.booleans())
def test_a_batch_is_what_each_decodes_to(
    data: st.DataObject, dtype: str, shape: tuple[int, ...], rows: int, sent: bool
) -> None:
    contract = Contract([TensorSpec("first", (1,), "uint8"), TensorSpec("x", shape, dtype)])
    filled = data.draw(st.integers(1, rows))
    products = [bytearray(data.draw(_bytes(contract.nbytes))) for _ in range(filled)]
    wanted = [contract.decode(bytes(product), framework="torch") for product in products]
    form = Form(contract, "torch", rows, sent=sent)
    made = batch_of(form, products)
    if sent:
        made = received(replace(form, sent=False), pickle.loads(pickle.dumps(made)))
    for name in contract.names:
        whole = torch.stack([each[name] for each in wanted])
        assert made[name].dtype == whole.dtype
        assert made[name].shape == whole.shape
        assert bits(made[name]) == bits(whole)


def bits(tensor: torch.Tensor) -> list[int]:
    said: list[int] = tensor.reshape(-1).view(torch.uint8).tolist()
    return said


def _bytes(nbytes: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=nbytes, max_size=nbytes)


def test_a_sample_alone_has_no_dimension_more() -> None:
    contract = Contract([TensorSpec("x", (2, 3), "bfloat16"), TensorSpec("n", (), "int64")])
    x = torch.arange(6).reshape(2, 3).bfloat16()
    product = contract.encode(x=x, n=np.asarray(7, np.int64))
    made = batch_of(Form(contract, "torch", None), [product])
    assert torch.equal(made["x"], x)
    assert made["n"].shape == ()
    assert made["n"] == 7


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_ragged_tensors_are_a_list(framework: Any) -> None:
    contract = Contract([TensorSpec("x", (-1, 2), "float32", max_ragged=5)])
    arrays = [np.full((rows, 2), rows, np.float32) for rows in (3, 0, 5)]
    form = Form(contract, framework, 4)
    made = batch_of(form, [contract.encode(x=array) for array in arrays])["x"]
    assert [each.tolist() for each in made] == [array.tolist() for array in arrays]
    alone = batch_of(replace(form, rows=None), [contract.encode(x=arrays[0])])["x"]
    assert alone.tolist() == arrays[0].tolist()


def test_what_is_kept_of_a_batch_keeps_no_more_than_itself() -> None:
    contract = Contract([TensorSpec("x", (1000,), "float32"), TensorSpec("n", (), "int64")])
    product = contract.encode(x=np.zeros(1000, np.float32), n=np.asarray(1, np.int64))
    made = batch_of(Form(contract, "torch", 1), [product])
    assert made["n"].untyped_storage().nbytes() == 8


def test_large_tensors_are_sent_through_shared_memory() -> None:
    contract = Contract([TensorSpec("x", (SENT_AT_MOST + 1,), "uint8")])
    form = Form(contract, "torch", 1, sent=True)
    product = bytearray(contract.nbytes)
    product[7] = 9
    made = batch_of(form, [product])
    assert made["x"].is_shared()
    assert received(replace(form, sent=False), made)["x"][0, 7] == 9


def test_a_collate_function_gets_samples_of_their_own() -> None:
    contract = Contract([TensorSpec("x", (2,), "float32")])

    def longest_first(samples: list[dict[str, Any]]) -> Any:
        return [sample["x"] for sample in reversed(samples)]

    products = [contract.encode(x=np.full(2, n, np.float32)) for n in range(3)]
    made = batch_of(Form(contract, "torch", 3, longest_first), products)
    assert [each.tolist() for each in made] == [[2, 2], [1, 1], [0, 0]]


@pytest.mark.parametrize("collate", [None, list])
def test_another_size_is_said_with_the_product(collate: Any) -> None:
    contract = Contract([TensorSpec("x", (2,), "float32")])
    batch = Batch(Form(contract, "torch", 2, collate))
    with pytest.raises(ContractError, match=r"'layer_3': the product is too long: 9 bytes where"):
        batch.add(cast(Product, Bytes(bytes(9))))
