"""Logs carry their fields in both forms, and never a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from entrepot import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    package = logging.getLogger("entrepot")
    before = (package.handlers[:], package.level, package.propagate)
    yield
    package.handlers[:], package.level, package.propagate = before[0], before[1], before[2]


def logged(stream: io.StringIO, message: str, **extra: Any) -> str:
    logs.setup("info", stream)
    logging.getLogger("entrepot.somewhere").info(message, extra=extra)
    return stream.getvalue()


def test_json_away_from_a_terminal() -> None:
    said = json.loads(logged(io.StringIO(), "order made", order_id="ñ 🐟", supplier="a\nb", n=3))
    assert said["message"] == "order made"
    assert (said["level"], said["logger"]) == ("info", "entrepot.somewhere")
    assert (said["order_id"], said["supplier"], said["n"]) == ("ñ 🐟", "a\nb", 3)
    assert said["time"].endswith("Z")


def test_text_on_a_terminal() -> None:
    line = logged(Terminal(), "order made", order_id="7", supplier="gpu-3")
    assert line.endswith("info order made  order_id=7 supplier=gpu-3\n")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
@pytest.mark.parametrize(
    ("message", "extra"),
    [
        ("connect", {"slot_token": "hunter2-hunter2-hunter2"}),
        ("connect", {"password": "hunter2"}),
        ("connect", {"address": "10.0.0.7:4711/hunter2hunter2hunter2"}),
        ("to tcp://user:hunter2@host:1", {}),
    ],
)
def test_no_secret_is_written(
    stream: type[io.StringIO], message: str, extra: dict[str, str]
) -> None:
    said = logged(stream(), message, **extra)
    assert "hunter2" not in said
    assert logs.MASK in said


def test_product_names_are_not_taken_for_secrets() -> None:
    assert logs.masked("shard-7/abcdefghijklmnopqrstuvwxyz") == "shard-7/abcdefghijklmnopqrstuvwxyz"


def test_exceptions_stay_one_line_of_json() -> None:
    stream = io.StringIO()
    logs.setup("info", stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("entrepot").exception("failed")
    assert "ValueError: two\nlines" in json.loads(stream.getvalue())["exception"]


def test_the_level_is_kept() -> None:
    stream = io.StringIO()
    logs.setup("warning", stream)
    logging.getLogger("entrepot.x").info("not this")
    logging.getLogger("entrepot.x").warning("but this")
    assert json.loads(stream.getvalue())["message"] == "but this"
