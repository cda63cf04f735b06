"""The messages: their bytes are frozen, and no bytes from a stranger raise but ProtocolError."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from entrepot.errors import ProtocolError
from entrepot.market import protocol
from entrepot.market.protocol import reader, refusal, seq_of, version_of
from entrepot.market.wording import command_of
from tests.unit.market import make_vectors

VECTORS: list[dict[str, Any]] = json.loads(make_vectors.PATH.read_text())["vectors"]
STRUCTS: dict[str, type[Struct]] = {
    name: kind
    for name, kind in vars(protocol).items()
    if inspect.isclass(kind)
    and issubclass(kind, Struct)
    and kind.__module__ == protocol.__name__
    and not name.startswith("_")
    and kind is not protocol.Message  # the base, which is no message
}
TYPED = [vector for vector in VECTORS if vector["struct"]]


def _name(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def _parts(message: object) -> Iterator[type[Struct]]:
    """The type of ``message`` and of every struct in it."""
    if isinstance(message, Struct):
        yield type(message)
        for field in message.__struct_fields__:
            yield from _parts(getattr(message, field))
    elif isinstance(message, list):
        for item in message:
            yield from _parts(item)


# --- the vectors ------------------------------------------------------------------------


def test_the_vector_file_is_the_one_that_its_script_writes() -> None:
    assert make_vectors.PATH.read_text() == make_vectors.text()


@pytest.mark.parametrize("vector", VECTORS, ids=_name)
def test_a_vector_decodes_to_its_fields(vector: dict[str, Any]) -> None:
    *command, fields = [bytes.fromhex(frame) for frame in vector["frames"]]
    assert command == ([] if vector["command"] is None else [vector["command"].encode()])
    assert msgspec.msgpack.decode(fields) == make_vectors.from_json(vector["fields"])


@pytest.mark.parametrize("vector", TYPED, ids=_name)
def test_a_vector_decodes_to_its_struct_and_encodes_to_the_same_bytes(
    vector: dict[str, Any],
) -> None:
    fields = bytes.fromhex(vector["frames"][-1])
    message = reader(STRUCTS[vector["struct"]])(fields)
    said = msgspec.to_builtins(message, builtin_types=(bytes,))
    for name, value in make_vectors.from_json(vector["fields"]).items():
        assert said[name] == value
    assert protocol.encode(message) == fields


def test_every_struct_and_every_command_has_a_vector() -> None:
    seen: set[type[Struct]] = set()
    for vector in TYPED:
        seen.update(_parts(reader(STRUCTS[vector["struct"]])(bytes.fromhex(vector["frames"][-1]))))
    assert seen == set(STRUCTS.values())
    commands = {
        value
        for name, value in vars(protocol).items()
        if isinstance(value, bytes) and name.isupper()
    } - {protocol.EMPTY}
    assert {vector["command"].encode() for vector in VECTORS if vector["command"]} == commands


@pytest.mark.parametrize("vector", TYPED, ids=_name)
def test_fields_that_are_not_known_are_ignored_but_in_a_version_1_order(
    vector: dict[str, Any],
) -> None:
    fields = make_vectors.from_json(vector["fields"])
    more = msgspec.msgpack.encode(fields | {"of_a_later_version": [1, {"a": None}]})
    read = reader(STRUCTS[vector["struct"]])
    if vector["struct"] == "V1Order":
        with pytest.raises(ProtocolError, match="of_a_later_version"):
            read(more)
    else:
        assert read(more) == read(bytes.fromhex(vector["frames"][-1]))


# --- strangers --------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.integers(-5, 5), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELD_NAMES = sorted({name for kind in STRUCTS.values() for name in kind.__struct_fields__})
MAPS = st.dictionaries(st.sampled_from(FIELD_NAMES), VALUES, max_size=8)
GOOD = st.sampled_from(TYPED)
READERS = [(kind, reader(kind)) for kind in STRUCTS.values()]

# A busy machine is no reason to fail.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _takes_or_refuses(fields: bytes) -> None:
    for kind, read in READERS:
        try:
            assert type(read(fields)) is kind
        except ProtocolError:
            pass
    assert 0 <= seq_of(fields) < 2**63
    try:
        assert 0 <= version_of(fields) <= protocol.PROTOCOL
    except ProtocolError:
        pass


@unhurried
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xc1")  # the one byte that MessagePack never uses
def test_any_bytes_are_taken_or_refused(fields: bytes) -> None:
    _takes_or_refuses(fields)


@unhurried
@given(MAPS)
def test_any_values_in_the_right_fields_are_taken_or_refused(fields: dict[str, Any]) -> None:
    _takes_or_refuses(msgspec.msgpack.encode(fields))


@unhurried
@given(GOOD, st.data())
def test_a_message_cut_short_is_refused(vector: dict[str, Any], data: st.DataObject) -> None:
    fields = bytes.fromhex(vector["frames"][-1])
    cut = data.draw(st.integers(0, len(fields) - 1))
    with pytest.raises(ProtocolError):
        reader(STRUCTS[vector["struct"]])(fields[:cut])
    _takes_or_refuses(fields[:cut])


@unhurried
@given(GOOD, st.data())
def test_a_message_with_one_byte_changed_is_taken_or_refused(
    vector: dict[str, Any], data: st.DataObject
) -> None:
    fields = bytearray.fromhex(vector["frames"][-1])
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(st.integers(0, 255))
    _takes_or_refuses(bytes(fields))


@unhurried
@given(GOOD, st.binary(min_size=1, max_size=8))
def test_a_message_with_more_behind_it_is_refused(vector: dict[str, Any], more: bytes) -> None:
    with pytest.raises(ProtocolError):
        reader(STRUCTS[vector["struct"]])(bytes.fromhex(vector["frames"][-1]) + more)


DEEP = 100_000
HOSTILE = {
    "deep arrays": b"\x91" * DEEP,
    "deep arrays, closed": b"\x91" * DEEP + b"\xc0",
    "deep maps": b"\x81\xa1a" * DEEP + b"\xc0",
    "deep arrays in an unknown field": b"\x81\xa1x" + b"\x91" * DEEP + b"\xc0",
    "deep arrays in a field of any type": b"\x81\xa5stats\x81\xa1a" + b"\x91" * DEEP + b"\xc0",
    "deep arrays where orders belong": b"\x81\xa6orders" + b"\x91" * DEEP + b"\xc0",
    "an array of 2**32 - 1": b"\xdd\xff\xff\xff\xff",
    "a map of 2**32 - 1": b"\xdf\xff\xff\xff\xff",
    "a string of 2**32 - 1": b"\xdb\xff\xff\xff\xff",
    "bytes of 2**32 - 1": b"\xc6\xff\xff\xff\xff",
    "an extension of 2**32 - 1": b"\xc9\xff\xff\xff\xff\x01",
    "2**32 - 1 orders": b"\x81\xa6orders\xdd\xff\xff\xff\xff",
    "2**32 - 1 results": b"\x81\xa7results\xdd\xff\xff\xff\xff",
    "2**32 - 1 patterns": b"\x81\xabproduct_ids\xdd\xff\xff\xff\xff",
    "2**32 - 1 contracts": b"\x81\xa9contracts\xdf\xff\xff\xff\xff",
    "an order id of 2**32 - 1": b"\x81\xa8order_id\xdb\xff\xff\xff\xff",
    "a field's name that is no text": b"\x81\xa2\xff\xfe\xc0",
    "an order id that is no text": b"\x81\xa8order_id\xa2\xff\xfe",
    "a timestamp": b"\x81\xa8order_id\xd6\xff\x00\x00\x00\x00",
}


@pytest.mark.parametrize("fields", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_taken_or_refused(fields: bytes) -> None:
    _takes_or_refuses(fields)


def _order(**fields: object) -> dict[str, object]:
    order = {"order_id": "o", "product_id": "p", "address": "a", "offset": 0, "nbytes": 1}
    return order | fields


REFUSED: dict[str, tuple[type[Struct], object]] = {
    "a long order id": (protocol.Cancel, {"order_id": "o" * (protocol.ID_CHARS + 1)}),
    "a long product id": (protocol.Orders, {"orders": [_order(product_id="p" * 4097)]}),
    "a negative offset": (protocol.Orders, {"orders": [_order(offset=-1)]}),
    "an offset of 2**63": (protocol.Orders, {"orders": [_order(offset=2**63)]}),
    "an offset that is a float": (protocol.Orders, {"orders": [_order(offset=1.5)]}),
    "an offset that is true": (protocol.Orders, {"orders": [_order(offset=True)]}),
    "a deadline of 0": (protocol.Orders, {"orders": [_order(deadline_s=0.0)]}),
    "a deadline that is no number": (
        protocol.Orders,
        {"orders": [_order(deadline_s=float("nan"))]},
    ),
    "an endless deadline": (protocol.Orders, {"orders": [_order(deadline_s=float("inf"))]}),
    "a priority of 2**31": (protocol.Orders, {"orders": [_order(priority=2**31)]}),
    "an order that lacks its place": (protocol.Orders, {"orders": [{"order_id": "o"}]}),
    "an order that is no map": (protocol.Orders, {"orders": ["o"]}),
    "a session of 15 bytes": (protocol.ClientHello, {"protocol": 2, "session": bytes(15)}),
    "a session that is text": (protocol.ClientHello, {"protocol": 2, "session": "s" * 16}),
    "a credit of 0": (protocol.SupplierHello, {"product_ids": ["p"], "credit": 0}),
    "a pattern that is bytes": (protocol.SupplierHello, {"product_ids": [b"p"]}),
    "a pattern that is a number": (protocol.SupplierHello, {"product_ids": [1]}),
    "no pattern list": (protocol.SupplierHello, {"protocol": 2}),
    "a negative lease": (protocol.Done, {"results": [{"order_id": "o", "lease": -1}]}),
    "a success that is 1": (protocol.V1Done, {"order_id": "o", "success": 1}),
    "an order id that is a list": (protocol.V1Cancel, {"order_id": ["o"]}),
    "an order id that is a map": (protocol.V1Order, _order(order_id={})),
    "a list and no map": (protocol.Discard, [1]),
}


@pytest.mark.parametrize(("kind", "fields"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_value_is_refused_with_its_place(kind: type[Struct], fields: object) -> None:
    with pytest.raises(ProtocolError, match=rf"^{command_of(kind.__name__)}: "):
        reader(kind)(msgspec.msgpack.encode(fields))


# --- the small readers ------------------------------------------------------------------


@unhurried
@given(st.integers(0, 2**63 - 1))
def test_seq_of_a_message_that_is_wrong_in_all_else(seq: int) -> None:
    assert seq_of(msgspec.msgpack.encode({"seq": seq, "orders": "none", "order_id": [1]})) == seq


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        (b"", 1),
        (protocol.EMPTY, 1),
        (msgspec.msgpack.encode({"protocol": 1}), 1),
        (msgspec.msgpack.encode({"protocol": 2}), 2),
        (msgspec.msgpack.encode({"protocol": 99, "session": "?"}), protocol.PROTOCOL),
    ],
)
def test_version_of_a_hello(fields: bytes, version: int) -> None:
    assert version_of(fields) == version


def test_a_refusal_is_a_reply() -> None:
    fields = refusal("too_large", "4,097 characters", seq=7, refused=("o-1", "o-2"))
    assert reader(protocol.Reply)(fields) == protocol.Reply(
        seq=7, code="too_large", error="4,097 characters", refused=["o-1", "o-2"]
    )
