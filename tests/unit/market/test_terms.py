"""What a client says of a supplier's contract, whatever the supplier said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.contract import Contract
from entrepot.market import events as ev
from entrepot.market.protocol import TERMS_CHARS, SupplierHello
from entrepot.market.terms import MAX_TERMS, difference, terms_of
from entrepot.tensors import TensorSpec
from tests.unit.market.small_market import Market

OURS = Contract([TensorSpec("x", (2,), "float32")])
THEIRS = Contract([TensorSpec("x", (2,), "bfloat16"), TensorSpec("y", (), "bool")])


def test_the_words_of_a_contract_are_the_contract() -> None:
    said = terms_of({"a": THEIRS, "b": THEIRS})
    assert Contract.from_dict(json.loads(said[THEIRS.digest])) == THEIRS
    assert difference(OURS, said[THEIRS.digest]) == (
        " (client here, supplier there): tensor x: dtype float32 here, bfloat16 there; "
        "tensor y: bool [] is only there"
    )


def test_what_cannot_be_compared_is_left_out() -> None:
    said = terms_of({"a": THEIRS})[THEIRS.digest]
    assert difference(None, said) == ""
    assert difference(OURS.digest, said) == ""
    assert difference(THEIRS, said) == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["specs", "name", "shape", "dtype", "align"]), inner)
    ),
    max_leaves=8,
)


@given(VALUES | st.fixed_dictionaries({"specs": st.lists(VALUES)}))
def test_a_supplier_may_say_anything(said: Any) -> None:
    assert isinstance(difference(OURS, json.dumps(said)), str)


@given(st.text())
def test_nor_need_it_be_json(said: str) -> None:
    assert isinstance(difference(OURS, said), str)


def test_what_is_told_is_bounded_and_fits_in_a_hello() -> None:
    long = Contract([TensorSpec(f"tensor {number}", (), "bool") for number in range(200)])
    assert terms_of({"a": long}) == {}
    many = {
        str(number): Contract([TensorSpec("x" * 3000, (number,), "bool")]) for number in range(300)
    }
    said = terms_of(many)
    assert len(said) == MAX_TERMS
    hello = msgspec.msgpack.encode(SupplierHello(product_ids=["a"], terms=said))
    assert msgspec.msgpack.decode(hello, type=SupplierHello).terms == said
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(
            msgspec.msgpack.encode({"product_ids": [], "terms": {"d": "x" * (TERMS_CHARS + 1)}}),
            type=SupplierHello,
        )


def test_the_broker_passes_them_on_to_who_is_refused() -> None:
    market = Market()
    market.client("c", contract="ours")
    market.supplier("s", "p", contracts={"p": "theirs"}, terms={"theirs": "words"})
    (refused,) = market.order("a", client="c")
    assert isinstance(refused, ev.Refuse)
    assert (refused.code, refused.terms) == ("contract_mismatch", "words")
