"""Names to keys and back: every name has a key, no two have the same, and prefixes are folders."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from entrepot.store import layout
from entrepot.testing.store_suite import ODD_NAMES

# What is apt to be mixed up, and anything at all.
PARTS = st.one_of(
    st.sampled_from(
        ["", ".", "..", "trial", "segment", "000000", "0", "7", "1000", "3.0", "a.json", "%", "%2E"]
    ),
    st.from_regex(r"[0-9]{1,8}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.text(st.sampled_from("a.%/"), max_size=140),
)
NAMES = st.lists(PARTS, min_size=1, max_size=7).map("/".join).filter(bool)

KEY = re.compile(r"names(/[A-Za-z0-9_.%-]+)+\.json")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("spam/trial/7/0", "names/spam/trial/000000/7.0.json"),
        ("spam/trial/12345/2", "names/spam/trial/000012/12345.2.json"),
        ("spam/trial/999999999/0", "names/spam/trial/999999/999999999.0.json"),
        ("spam/trial/1000000000/0", "names/spam/trial/1000000/1000000000.0.json"),
        ("a/b/trial/0/0", "names/a/b/trial/000000/0.0.json"),
        ("spam/trial/07/0", "names/spam/trial/07/0.json"),
        ("spam/trial/7", "names/spam/trial/7.json"),
        ("trial/7/0", "names/trial/7/0.json"),
        ("/trial/7/0", "names/%/trial/7/0.json"),
        ("spam/trial/000000/7.0", "names/spam/trial/%3000000/7.0.json"),
        ("spam/trial/123456", "names/spam/trial/%3123456.json"),
        ("spam/trial/7/0/x", "names/spam/trial/7/0/x.json"),
        ("spam/segment/000012", "names/spam/segment/000012.json"),
        ("spam", "names/spam.json"),
        ("two words", "names/two%20words.json"),
        ("año", "names/a%C3%B1o.json"),
        ("..", "names/%2E..json"),
        ("../a", "names/%2E./a.json"),
        (".hidden/.x", "names/%2Ehidden/%2Ex.json"),
        ("a//b/", "names/a/%/b/%.json"),
        ("100%", "names/100%25.json"),
        ("a.json/a.json", "names/a%2Ejson/a.json.json"),
    ],
)
def test_where_a_name_lies(name: str, key: str) -> None:
    assert layout.key_of(name) == key
    assert layout.name_of(key) == name


def test_a_long_name_keeps_its_folders_and_is_hashed_from_where_it_is_too_long() -> None:
    name = "spam/" + "x" * 121
    key = layout.key_of(name)
    assert re.fullmatch(r"names/spam/%%[0-9a-f]{64}\.json", key)
    assert layout.is_hashed(key)
    assert layout.name_of(key) is None
    assert layout.key_of("spam/" + "x" * 120) == f"names/spam/{'x' * 120}.json"


@given(NAMES)
@example("x/trial/" + "1" * 63)
@example("🚀" * 800)
def test_every_key_is_short_plain_and_the_names_own(name: str) -> None:
    key = layout.key_of(name)
    assert KEY.fullmatch(key)
    assert len(key) <= 600
    parts = key.split("/")
    assert all(len(part) <= 200 and not part.startswith(".") for part in parts)
    # No folder's name could be a record's file.
    assert not any(part.endswith(".json") for part in parts[:-1])
    assert layout.is_hashed(key) or layout.name_of(key) == name


@given(NAMES, NAMES)
def test_two_names_have_two_keys(one: str, other: str) -> None:
    assume(one != other)
    assert layout.key_of(one) != layout.key_of(other)


def test_the_odd_names_have_keys_of_their_own() -> None:
    assert len({layout.key_of(name) for name in ODD_NAMES}) == len(ODD_NAMES)


@given(NAMES, st.integers(0, 60))
def test_a_name_lies_below_the_folder_of_each_of_its_prefixes(name: str, cut: int) -> None:
    prefix = name[:cut]
    folder = layout.folder_of(prefix)
    assert layout.key_of(name).startswith(f"{folder}/")


@given(NAMES, NAMES)
def test_below_a_whole_prefix_lies_nothing_else(one: str, other: str) -> None:
    prefix = one[: one.rfind("/") + 1]
    assume(layout.is_whole(prefix))
    key = layout.key_of(other)
    if key.startswith(f"{layout.folder_of(prefix)}/") and not layout.is_hashed(key):
        assert other.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "folder", "whole"),
    [
        ("", "names", True),
        ("spam", "names", False),
        ("spam/", "names/spam", True),
        ("spam/trial/", "names/spam/trial", True),
        ("spam/trial/7/", "names/spam/trial", False),
        ("spam/trial/7/0", "names/spam/trial", False),
        ("spam/tri", "names/spam", False),
        ("a b/", "names/a%20b", True),
    ],
)
def test_the_folder_of_a_prefix(prefix: str, folder: str, whole: bool) -> None:
    assert layout.folder_of(prefix) == folder
    assert layout.is_whole(prefix) is whole


@pytest.mark.parametrize(
    "key",
    [
        "store.json",
        "names/spam",
        "names/.json",
        "names//a.json",
        "names/a b.json",
        "names/a%20b.txt",
        "names/a%c3%b1.json",
        "names/%41.json",
        "names/%FF.json",
        "names/.hidden.json",
        "names/spam/trial/000001/7.0.json",
        "names/spam/trial/000000/07.0.json",
        "names/spam/trial/000000/x.json",
        "blobs/aa/" + "aa" * 32,
    ],
)
def test_where_no_name_lies(key: str) -> None:
    assert layout.name_of(key) is None


def test_where_a_blob_lies() -> None:
    digest = "sha256:" + "ab" + "0" * 62
    key = layout.blob_key(digest)
    assert key == "blobs/ab/ab" + "0" * 62
    assert layout.digest_at(key) == digest
    for other in ("blobs/ac/ab" + "0" * 62, key + "0", key[:-1], "names/ab/" + "0" * 64, "blobs"):
        assert layout.digest_at(other) is None


@pytest.mark.parametrize(
    ("folder", "block"),
    [
        ("names/spam/trial/000012", 12),
        ("names/spam/trial/1000000", 1000000),
        ("names/spam/trial/0000012", None),
        ("names/spam/trial/12", None),
        ("names/spam/trial", None),
        ("names/spam/segment/000012", None),
    ],
)
def test_the_block_of_a_folder(folder: str, block: int | None) -> None:
    assert layout.block_at(folder) == block


def test_every_trial_is_in_the_folder_of_its_block() -> None:
    for number in (0, 999, 1000, 123456):
        folder = layout.key_of(f"spam/trial/{number}/0").rpartition("/")[0]
        assert layout.block_at(folder) == layout.block_of(number) == number // 1000
