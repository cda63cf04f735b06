"""Records as bytes: the same ones always, and what is wrong with others is told apart."""

from __future__ import annotations

import json
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.store.record import (
    EMPTY,
    Fault,
    Record,
    checked_meta,
    digest_of,
    digests_in,
    pack_record,
    read_record,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORDS = st.builds(
    Record,
    name=TEXT.filter(bool),
    digest=st.binary(max_size=9).map(digest_of),
    meta=st.dictionaries(TEXT, TEXT, max_size=5),
    when=st.floats(0, 4e9),
    writer=TEXT,
    nonce=st.just("0" * 32),
)
RECORD = Record(
    "spam/trial/7/0", EMPTY, {"z": "1", "a": "ñ"}, 1796000000.25, "gpu-7:4711", "5" * 32
)
PACKED = (
    '{"name":"spam/trial/7/0",'
    '"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",'
    '"meta":{"z":"1","a":"ñ"},"when":1796000000.25,"writer":"gpu-7:4711",'
    '"nonce":"55555555555555555555555555555555"}\n'
).encode()


def test_these_bytes_and_no_others() -> None:
    assert pack_record(RECORD) == PACKED


@given(RECORDS)
def test_what_is_packed_is_read_and_is_json_for_everybody(record: Record) -> None:
    data = pack_record(record)
    assert read_record(data) == record
    assert json.loads(data)["meta"] == record.meta
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1


@given(RECORDS, st.data())
def test_every_beginning_is_torn(record: Record, data: st.DataObject) -> None:
    packed = pack_record(record)
    # Without its last byte, the line's end, it is whole.
    cut = data.draw(st.integers(0, len(packed) - 2))
    zeros = data.draw(st.integers(0, 5))
    assert read_record(packed[:cut] + bytes(zeros)) is Fault.TORN


def test_it_is_torn_wherever_it_was_cut() -> None:
    for cut in range(len(PACKED) - 1):
        assert read_record(PACKED[:cut]) is Fault.TORN, PACKED[:cut]
    for number in (b"-1.5", b"1e22", b"1e-7", b"0.5"):
        packed = PACKED.replace(b"1796000000.25", number)
        assert isinstance(read_record(packed), Record)
        for cut in range(packed.index(b"when"), packed.index(b"writer")):
            assert read_record(packed[:cut]) is Fault.TORN, packed[:cut]


def test_a_record_without_its_line_end_is_whole() -> None:
    assert read_record(PACKED[:-1]) == RECORD


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.TORN),
        (bytes(200), Fault.TORN),
        (b"\n", Fault.FOREIGN),
        (b"{}", Fault.FOREIGN),
        (b"[]", Fault.FOREIGN),
        (b"null", Fault.FOREIGN),
        (b"hello", Fault.FOREIGN),
        (b"\xff\xfe\x00", Fault.FOREIGN),
        (b"[" * 100_000, Fault.FOREIGN),
        (b'{"name":"a","meta":' + b"[" * 100_000, Fault.FOREIGN),
        (b'{"name":"a","meta":{"b":"c" 7', Fault.FOREIGN),
        (PACKED.replace(b'"z":"1"', b'"z":1'), Fault.FOREIGN),
        (PACKED.replace(b"1796000000.25", b"NaN"), Fault.FOREIGN),
        (PACKED.replace("ñ".encode(), b"\xff"), Fault.FOREIGN),
        (PACKED + PACKED, Fault.FOREIGN),
        (PACKED.replace(b"}\n", b',"format":2}\n'), Fault.FUTURE),
        (b'{"name":"a","format":7,"other":[1,2,{"x":null}]}', Fault.FUTURE),
        (b'{"name":"a","format":0}', Fault.FOREIGN),
        (b'{"name":"a","format":"two"}', Fault.FOREIGN),
    ],
)
def test_what_is_no_record(data: bytes, fault: Fault) -> None:
    assert read_record(data) is fault


def test_what_a_later_release_adds_without_a_new_format_is_passed_over() -> None:
    assert read_record(PACKED.replace(b"}\n", b',"more":[1]}\n')) == RECORD


def test_meta_is_copied() -> None:
    meta = {"a": "1"}
    checked = checked_meta(meta)
    meta["a"] = "2"
    assert checked == {"a": "1"}


def test_words_of_an_enumeration_are_text() -> None:
    class State(StrEnum):
        DONE = "done"

    record = Record("a", EMPTY, checked_meta({"state": State.DONE, Fault.TORN: "x"}), 1.0, "", "0")
    assert b'"meta":{"state":"done","torn":"x"}' in pack_record(record)


def test_digests_are_found_wherever_they_stand() -> None:
    one, two = digest_of(b"1"), digest_of(b"2")
    assert digests_in(f'x{one}y"{two}"'.encode() + b"\xff" + EMPTY[:-1].encode()) == {one, two}
