"""What a stage's messages keep, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from entrepot.errors import BadStageMessage, ConfigurationError, StageError, StageMismatch
from entrepot.mediums import FilesystemMedium, Medium, ShmMedium, shm
from entrepot.stages import values as values_module
from entrepot.stages.protocol import REPLY, REQUEST, Message, Reply, Request, checked_name
from entrepot.stages.values import Bits, Item, owned, unpack

SENT = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32"]
SENT += ["uint16", "uint8", "bool", ">f4", ">i8"]

arrays = st.sampled_from(SENT).flatmap(
    lambda name: npst.arrays(np.dtype(name), npst.array_shapes(min_dims=0, min_side=0))
)
bits = st.one_of(
    npst.arrays(np.uint16, npst.array_shapes(min_dims=0)).map(lambda a: Bits(a, "bfloat16")),
    npst.arrays(np.uint8, (3,)).map(lambda a: Bits(a, "float8_e5m2")),
)
values = st.dictionaries(
    st.text(max_size=20),
    st.one_of(
        arrays,
        bits,
        st.text(),
        st.binary(),
        st.lists(st.text(), max_size=6),
        st.lists(st.binary(), max_size=6),
    ),
    max_size=6,
)


def same(sent: Any, got: Any) -> bool:
    if isinstance(sent, Bits):
        return isinstance(got, Bits) and sent.dtype == got.dtype and same(sent.array, got.array)
    if isinstance(sent, np.ndarray):
        return (
            isinstance(got, np.ndarray)
            and got.dtype == sent.dtype.newbyteorder("<")
            and got.shape == sent.shape
            and got.tobytes() == sent.astype(got.dtype).tobytes()
        )
    return type(sent) is type(got) and sent == got


def request(**fields: Any) -> Request:
    return Request(stage="embed", verb="forward", **fields)


# --- the round trip ---------------------------------------------------------------------


@given(values)
@example(
    {"text": ["", "ñ", "\U0001d4b3" * 50, "\u202eعربى", "\0"], "none": [], "x": np.zeros((0, 3))}
)
def test_every_value_comes_back_as_it_was(sent: dict[str, Any]) -> None:
    message = REQUEST.encode(request(run="a/b", step=3, keep=True, names=["x"]), sent)
    whole = message.tobytes()
    assert message.nbytes == len(whole)
    header, got = REQUEST.decode(memoryview(whole))
    assert (header.run, header.step, header.keep, header.names) == ("a/b", 3, True, ["x"])
    assert list(got) == list(sent)
    for name, value in sent.items():
        assert same(value, got[name])
        assert same(value, owned(got[name]))


@given(values)
def test_a_reply_is_written_into_its_slot(sent: dict[str, Any]) -> None:
    message = REPLY.encode(Reply(host="h", info={"hash": "0f", "step": 2}), sent)
    slot = bytearray(message.nbytes)
    message.write_into(memoryview(slot))
    header, got = REPLY.decode(memoryview(slot))
    assert header.info == {"hash": "0f", "step": 2}
    assert list(got) == list(sent)


@given(values)
@pytest.mark.parametrize("codec", [REQUEST, REPLY])
def test_a_message_is_the_same_however_it_is_written(codec: Any, sent: dict[str, Any]) -> None:
    """Into memory, where it is summed on the way, in a file, and as buffers."""
    big = {**sent, "big": np.arange(150_000, dtype=np.float64)}
    said = [codec.encode(_header(codec), big) for _ in range(4)]
    whole = said[0].tobytes()
    assert b"".join(said[1].parts) == whole
    slot = memoryview(bytearray(len(whole)))
    said[2].write_into(slot)
    assert slot == whole
    said[2].write_into(slot)  # again, for another attempt
    assert slot == whole
    kinds: list[Medium] = [
        ShmMedium.create(len(whole), 2),
        FilesystemMedium.create(len(whole), 2, root=str(shm.DIRECTORY)),
    ]
    for medium in kinds:
        with medium:
            said[3].write(medium, medium.offset(1))
            assert medium.read(medium.offset(1), len(whole)) == whole
            assert medium.read(0, len(whole)) == bytes(len(whole))
    _, got = codec.decode(memoryview(whole))
    assert list(got) == list(big)
    np.testing.assert_array_equal(got["big"], big["big"])


def _header(codec: Any) -> Any:
    return request() if codec is REQUEST else Reply(host="h")


def test_arrays_are_neither_copied_on_the_way_in_nor_on_the_way_out() -> None:
    array = np.arange(1000, dtype=np.float32)
    message = REQUEST.encode(request(), {"x": array})
    assert any(np.shares_memory(array, np.frombuffer(part, np.uint8)) for part in message.parts[1:])
    whole = bytearray(message.tobytes())
    _, got = REQUEST.decode(memoryview(whole))
    x = got["x"]
    assert isinstance(x, np.ndarray)
    assert np.shares_memory(x, np.frombuffer(whole, np.uint8))
    assert x.ctypes.data % 4 == 0


def test_arrays_that_lie_apart_are_sent_as_they_read() -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)[::-2, 1::2].T
    _, got = REQUEST.decode(memoryview(REQUEST.encode(request(), {"x": array}).tobytes()))
    np.testing.assert_array_equal(got["x"], array)


def test_a_byte_that_is_neither_true_nor_false_is_true() -> None:
    whole = bytearray(REPLY.encode(Reply(), {"x": np.array([True, False])}).tobytes())
    whole[-2] = 7
    _, got = REPLY.decode(memoryview(whole))
    x = got["x"]
    assert isinstance(x, np.ndarray)
    assert x.view(np.uint8).tolist() == [1, 0]


# --- what is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "is a object"),
        (np.array([object()]), "has dtype object"),
        (np.zeros(2, "complex64"), "has dtype complex64"),
        ([1, 2], "np.asarray"),
        (["a", b"b"], "a list of bytes and str"),
        ("\ud800", "lone surrogate"),
        (Bits(np.zeros(2, np.float32), "bfloat16"), "in float32"),
        (Bits(np.zeros(2, np.uint16), "float128"), "they are one of"),
        ({"a": 1}, "is a dict"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(value: object, said: str) -> None:
    with pytest.raises(BadStageMessage, match="value 'x'") as refused:
        REQUEST.encode(request(), {"x": value})
    assert said in str(refused.value)


class NoArray:
    """As a tensor is of a dtype that numpy lacks, or one that gradients flow through."""

    def __array__(self, dtype: object = None, copy: object = None) -> None:
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_what_makes_no_array_of_itself_is_refused_with_its_reason_and_a_way() -> None:
    with pytest.raises(BadStageMessage, match=r"value 'x' is a NoArray .* BFloat16; give Bits"):
        REQUEST.encode(request(), {"x": NoArray()})


def test_too_many_values_too_long_names_and_headers_are_refused() -> None:
    with pytest.raises(BadStageMessage, match="at most 4096 values"):
        REQUEST.encode(request(), {str(n): b"" for n in range(4097)})
    with pytest.raises(BadStageMessage, match="name is text of at most 256"):
        REQUEST.encode(request(), {"n" * 257: b""})
    with pytest.raises(BadStageMessage, match="header has"):
        REPLY.encode(Reply(error="x" * (1 << 21)))


def whole_message() -> bytearray:
    sent = {"x": np.arange(5, dtype=np.float32), "t": ["a", "bc"], "b": b"123"}
    return bytearray(REQUEST.encode(request(run="r"), sent).tobytes())


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 64, 200, -1])
def test_a_message_that_was_cut_is_refused(cut: int) -> None:
    with pytest.raises(BadStageMessage):
        REQUEST.decode(memoryview(whole_message())[:cut])


def test_one_bit_that_flipped_is_found() -> None:
    for place in range(32, len(whole_message()), 7):
        message = whole_message()
        message[place] ^= 4
        with pytest.raises(BadStageMessage, match="checksum"):
            REQUEST.decode(memoryview(message))


def test_another_version_says_so() -> None:
    message = whole_message()
    message[14] = 9
    with pytest.raises(StageMismatch, match="version 9"):
        REQUEST.decode(memoryview(message))


def _items(change: Callable[[list[Any]], None]) -> bytes:
    """A reply one of whose items was changed."""
    whole = REPLY.encode(Reply(), {"x": np.arange(4, dtype=np.int32), "t": ["a", "bc"]}).tobytes()
    header, _ = REPLY.decode(memoryview(whole))
    items = [list(msgspec.structs.astuple(item)) for item in header.items]
    change(items)
    said = msgspec.msgpack.encode({"items": items})
    front = bytearray(whole[:32]) + said
    front[16:20] = len(said).to_bytes(4, "little")
    front += bytes(-len(front) % 64)
    return bytes(front) + whole[-(64 + 19) :]


def _set(item: int, field: int, value: object) -> Callable[[list[Any]], None]:
    def change(items: list[Any]) -> None:
        items[item][field] = value

    return change


def test_the_items_as_they_are_can_be_read() -> None:
    _, got = REPLY.decode(memoryview(_items(lambda items: None)))
    assert got["t"] == ["a", "bc"]


@pytest.mark.parametrize(
    "change",
    [
        _set(0, 2, [5]),
        _set(0, 2, [2**62, 2**62, 4]),
        _set(0, 2, [-4]),
        _set(0, 2, [1] * 33),
        _set(0, 3, 2**62),
        _set(0, 3, 2**63),
        _set(0, 1, "float128"),
        _set(0, 1, "bytes"),
        _set(0, 1, "strs"),
        _set(1, 0, "x"),
        _set(1, 1, "str"),
        _set(1, 2, [3]),
        _set(1, 2, [0]),
        _set(1, 2, [2**62]),
        _set(1, 3, 18),
        lambda items: items.pop(),
        lambda items: items.append(["more", "blob", [], 1]),
        lambda items: items.extend(["v", "blob", [], 0] for _ in range(5000)),
        lambda items: items.__setitem__(0, "no item"),
    ],
)
def test_items_that_do_not_agree_with_the_bytes_are_refused(
    change: Callable[[list[Any]], None],
) -> None:
    with pytest.raises(BadStageMessage):
        REPLY.decode(memoryview(_items(change)))


def test_an_empty_array_that_is_too_large_is_refused() -> None:
    with pytest.raises(BadStageMessage, match=r"too (big|large)"):
        unpack([Item("x", "float64", [0, 2**62, 2**62], 0)], memoryview(b""), 0)


def test_text_that_is_no_utf8_is_refused() -> None:
    for item, data in (
        (Item("x", "str", [], 2), b"\xc3\x28"),
        (Item("x", "strs", [1], 9), (1).to_bytes(8, "little") + b"\xc3"),
        (Item("x", "strs", [2], 18), b"\2" + bytes(7) + b"\1" + bytes(7) + b"ab"),
    ):
        with pytest.raises(BadStageMessage):
            unpack([item], memoryview(data), 0)


# --- strangers' bytes -------------------------------------------------------------------


@given(st.binary(max_size=400))
def test_no_bytes_whatever_crash_a_reader(data: bytes) -> None:
    for codec in (REQUEST, REPLY):
        with pytest.raises(StageError):
            codec.decode(memoryview(data))


@given(st.data())
def test_no_change_of_a_message_crashes_a_reader(data: st.DataObject) -> None:
    """What is read of a damaged reply, whose checksum is the market's, is refused or is a value."""
    sent = {"x": np.arange(5, dtype=np.float32), "t": ["a", "bc"], "b": [b"123", b""]}
    whole = bytearray(REPLY.encode(Reply(names=["x"], info={"a": 1}), sent).tobytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for damaged in (whole, whole[:cut]):
        try:
            _, got = REPLY.decode(memoryview(damaged))
        except StageError:
            continue
        for value in got.values():
            owned(value)


@given(
    st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(), st.lists, max_leaves=20)
)
def test_no_header_whatever_crashes_a_reader(said: object) -> None:
    header = msgspec.msgpack.encode({"items": said, "names": said, "stage": said, "verb": ""})
    front = bytearray(REPLY.encode(Reply()).tobytes()[:32]) + header
    front[16:20] = len(header).to_bytes(4, "little")
    front += bytes(-len(front) % 64)
    try:
        REPLY.decode(memoryview(front))
    except StageError:
        pass


def test_a_deep_header_is_refused() -> None:
    deep = b"\x81\xa5items" + b"\x91" * 100_000 + b"\xc0"
    front = bytearray(REPLY.encode(Reply()).tobytes()[:32]) + deep
    front[16:20] = len(deep).to_bytes(4, "little")
    front += bytes(-len(front) % 64)
    with pytest.raises(BadStageMessage):
        REPLY.decode(memoryview(front))


# --- names ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["embed", "layer_3", "a.b-c", "0"])
def test_a_stages_name_is_plain(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "ñ", "a b", "x" * 129, 3, None, "a\n"])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(ConfigurationError, match="a stage's name"):
        checked_name(name)


def test_a_message_knows_its_size() -> None:
    assert Message([b"ab", memoryview(b"c")]).nbytes == 3
    assert values_module.aligned(65) == 128
