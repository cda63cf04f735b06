"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import ConfigurationError
from entrepot.sizes import UNITS, parse_size, show_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("1_048_576", 1 << 20),
        ("1MiB", 1 << 20),
        ("64 KiB", 64 << 10),
        ("64kib", 64 << 10),
        ("1.5GiB", 3 << 29),
        ("1.5kB", 1500),
        ("3MB", 3_000_000),
        ("2GB", 2_000_000_000),
        (" 7b ", 7),
    ],
)
def test_what_a_size_says(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MiB",
        "-1",
        "1 MiBs",
        "1e6",
        "1,5MB",
        "٣x",
        "٣",
        "1K",
        "1Mi",
        "0x10",
        "nan",
        "_1",
        "1.MB",
    ],
)
def test_what_is_no_size_is_refused_with_the_units_that_are(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a size") as told:
        parse_size(text)
    assert repr(text) in str(told.value)
    for unit in UNITS:
        assert unit in str(told.value)


@pytest.mark.parametrize("text", ["0", "0MiB", "0.0001kB"])
def test_less_than_a_byte_is_no_size(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{text}' is less than one byte"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1.5", "0.2b", "1000.25 B"])
def test_a_part_of_a_byte_is_refused(text: str) -> None:
    """Whoever writes 1.5 means another unit, and would get one byte."""
    with pytest.raises(ConfigurationError, match=f"'{text}' is no whole number of bytes; a unit"):
        parse_size(text)


def test_a_large_size_is_exact() -> None:
    """Beyond 2**53 a float would round it."""
    assert parse_size(f"{2**60 + 1}") == 2**60 + 1


@given(st.integers(min_value=1, max_value=1 << 62))
def test_a_size_that_is_shown_is_read_back(nbytes: int) -> None:
    assert parse_size(show_size(nbytes)) == nbytes


def test_a_size_is_shown_in_the_largest_unit_that_is_exact() -> None:
    shown = [show_size(nbytes) for nbytes in (1536, 1 << 20, 3 << 29, 1 << 30, 0)]
    assert shown == ["1536", "1MiB", "1536MiB", "1GiB", "0"]
