"""What is wrong with a message is said in the protocol's words, not the decoder's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from entrepot.errors import ProtocolError
from entrepot.market import protocol
from entrepot.market.protocol import reader
from entrepot.market.wording import command_of, in_words

ORDER: dict[str, Any] = {
    "order_id": "o",
    "product_id": "p",
    "address": "a",
    "offset": 0,
    "nbytes": 1,
}


def orders(*each: object) -> dict[str, object]:
    return {"orders": list(each)}


SAID: list[tuple[type[Struct], object, str]] = [
    (protocol.Cancel, {"order_id": 7}, "CANCEL: order_id must be text, and is an integer"),
    (protocol.Cancel, {}, "CANCEL: it lacks order_id"),
    (protocol.Cancel, [1], "CANCEL: it must be a map, and is a list"),
    (protocol.Discard, {"seq": "x"}, "DISCARD: seq must be an integer, and is text"),
    (protocol.Discard, {"seq": -1}, "DISCARD: seq must be an integer of at least 0"),
    (protocol.Orders, {"orders": 7}, "ORDERS: orders must be a list, and is an integer"),
    (protocol.Orders, orders(ORDER, 7), "ORDERS: orders number 2 must be a map, and is an integer"),
    (
        protocol.Orders,
        orders(ORDER, ORDER, ORDER | {"offset": -1}),
        "ORDERS: offset of orders number 3 must be an integer of at least 0",
    ),
    (protocol.Orders, orders({"order_id": "o"}), "ORDERS: orders number 1 lacks product_id"),
    (
        protocol.Orders,
        orders(ORDER | {"product_id": "p" * 4097}),
        "ORDERS: product_id of orders number 1 must be text of at most 4096 characters",
    ),
    (
        protocol.Orders,
        orders(ORDER | {"deadline_s": 0.0}),
        "ORDERS: deadline_s of orders number 1 must be a number over 0.0",
    ),
    (
        protocol.Orders,
        orders(ORDER | {"deadline_s": "soon"}),
        "ORDERS: deadline_s of orders number 1 must be a number or nothing, and is text",
    ),
    (
        protocol.Orders,
        orders(ORDER | {"input": {"address": "a", "offset": 0, "nbytes": "many"}}),
        "ORDERS: nbytes of input of orders number 1 must be an integer, and is text",
    ),
    (
        protocol.SupplierHello,
        {"product_ids": ["a", b"b"]},
        "HELLO: product_ids number 2 must be text, and is bytes",
    ),
    (
        protocol.SupplierHello,
        {"product_ids": [], "contracts": {"p": 7}},
        "HELLO: a value of contracts must be text, and is an integer",
    ),
    (
        protocol.SupplierHello,
        {"product_ids": [], "contracts": {7: "c"}},
        "HELLO: a key of contracts must be text, and is an integer",
    ),
    (
        protocol.ClientHello,
        {"session": bytes(15)},
        "HELLO: session must be bytes of at least 16 bytes",
    ),
    (
        protocol.V1Order,
        ORDER | {"nbytes": 1},
        "ORDER: it has an unknown field, nbytes",
    ),
    (protocol.V1Done, {"order_id": "o", "success": 1}, "DONE: success must be true or false, and"),
]


@pytest.mark.parametrize(("kind", "fields", "said"), SAID, ids=[said for _, _, said in SAID])
def test_what_is_wrong_is_said_in_words(kind: type[Struct], fields: object, said: str) -> None:
    with pytest.raises(ProtocolError) as told:
        reader(kind)(msgspec.msgpack.encode(fields))
    assert str(told.value).startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b"", "CANCEL: it is cut short"),
        (b"\x81\xa8order_id\xd9", "CANCEL: it is cut short"),
        (b"\xc1", "CANCEL: it is not MessagePack: "),
        (msgspec.msgpack.encode({"order_id": "o"}) + b"more", "CANCEL: it is not MessagePack: "),
    ],
)
def test_bytes_that_are_no_message(fields: bytes, said: str) -> None:
    with pytest.raises(ProtocolError) as told:
        reader(protocol.Cancel)(fields)
    assert str(told.value).startswith(said)


KINDS = [
    kind
    for kind in vars(protocol).values()
    if isinstance(kind, type) and issubclass(kind, Struct) and kind.__module__ == protocol.__name__
]
SCALARS = st.none() | st.booleans() | st.integers(-5, 2**64 - 1) | st.floats() | st.text(max_size=5)
NAMES = sorted({name for kind in KINDS for name in kind.__struct_fields__})


@given(
    st.sampled_from(KINDS),
    st.dictionaries(
        st.sampled_from(NAMES),
        SCALARS
        | st.lists(SCALARS | st.dictionaries(st.sampled_from(NAMES), SCALARS), max_size=3)
        | st.dictionaries(st.integers(0, 9) | st.sampled_from(NAMES), SCALARS, max_size=3),
        max_size=6,
    )
    | st.dictionaries(st.integers(0, 9), SCALARS),
)
def test_nothing_of_the_decoders_notation_is_left(
    kind: type[Struct], fields: dict[Any, Any]
) -> None:
    try:
        reader(kind)(msgspec.msgpack.encode(fields))
    except ProtocolError as fault:
        said = str(fault)
        assert not {"`", "$", "[", "|"}.intersection(said), said
        assert "Expected" not in said


@given(st.text())
def test_a_sentence_that_is_not_known_is_kept(fault: str) -> None:
    """Another release of the decoder may say it otherwise."""
    assert in_words(f"something else: {fault}").startswith("something else")


def test_commands_are_called_what_they_are_on_the_wire() -> None:
    assert {command_of(kind.__name__) for kind in KINDS} >= {
        *("HELLO", "ORDERS", "ORDER", "MOVE", "CANCEL", "DISCARD", "STATS", "DRAIN"),
        *("HEARTBEAT", "DONE", "WORK", "REPLY", "FULFILLED", "FAILED", "LOST"),
    }
