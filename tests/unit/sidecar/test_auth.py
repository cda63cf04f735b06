"""The token: who may look."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.errors import ConfigurationError
from entrepot.sidecar.auth import Guard, read_token

TOKEN = "0123456789abcdef0123"


def basic(password: str, name: str = "me") -> str:
    return "Basic " + b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize("said", [f"Bearer {TOKEN}", f"bearer   {TOKEN} ", basic(TOKEN)])
def test_who_knows_it_may_look(said: str) -> None:
    assert Guard(TOKEN).allows(said)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        TOKEN,
        "Bearer",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Token {TOKEN}",
        basic("other"),
        basic("x", TOKEN),
        "Basic !!!",
        "Basic " + TOKEN,
        "Bearer \N{SNOWMAN}",
        "Bearer \udc80",
    ],
)
def test_others_may_not(said: str | None) -> None:
    assert not Guard(TOKEN).allows(said)


@given(st.text())
def test_no_header_is_an_error(said: str) -> None:
    assert Guard(TOKEN).allows(said) in (True, False)


def test_without_a_token_all_may() -> None:
    assert Guard(None).allows(None)
    assert read_token(None) is None


def test_it_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o400)
    assert read_token(str(file)) == TOKEN


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"short", 0o400, "5 characters; it is 16 or more"),
        (b"", 0o400, "0 characters"),
        (b"0123456789 abcdef0123", 0o400, "without a space"),
        ("\N{SNOWMAN}".encode() * 20, 0o400, "ASCII"),
        (b"\xff" * 20, 0o400, "cannot be read"),
        (TOKEN.encode(), 0o666, "chmod 0400"),
    ],
)
def test_one_that_is_no_good_is_refused_and_not_told(
    tmp_path: Path, content: bytes, mode: int, said: str
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=said) as told:
        read_token(str(file))
    assert TOKEN not in str(told.value)


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="/no/such"):
        read_token("/no/such")
