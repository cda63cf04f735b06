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


OBEYED = "\x1b[31m \x07 \x7f \x9b31m \u202e \ud800 end"
"""What colours, rings, deletes, colours again, turns round, and cannot be written."""


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_terminal_obeys_nothing_of_what_others_say(stream: type[io.StringIO]) -> None:
    """In the message, a field, and an error with a traceback; JSON still says what was said."""
    target = stream()
    logs.setup("info", target)
    try:
        raise ValueError(OBEYED)
    except ValueError:
        logging.getLogger("entrepot").exception("of %s", OBEYED, extra={"product_id": "p" + OBEYED})
    written = target.getvalue()
    assert all(sign.isprintable() or sign == "\n" for sign in written)
    written.encode()
    if stream is io.StringIO:
        said = json.loads(written)
        assert said["product_id"] == "p" + OBEYED
        assert OBEYED in said["exception"]
    else:
        assert written.count(r"\x1b[31m") == 3
        assert "ValueError: " in written.splitlines()[-1]


def test_what_the_message_says_is_not_a_field_again_on_a_terminal() -> None:
    said = logged(Terminal(), "not registered: no room", why="no room", supplier="gpu-3")
    assert said.endswith("info not registered: no room  supplier=gpu-3\n")


def test_words_of_others_fit_a_line() -> None:
    assert logs.in_a_line("two\n lines\x00 🐟  ñ") == r"two lines\x00 🐟 ñ"
    assert len(logs.in_a_line("long" * 10_000)) == logs.WHY_CHARS
    assert "hunter2" not in logs.in_a_line("at 10.0.0.7:4711/hunter2hunter2hunter2")


def test_an_error_is_its_type_and_its_sentence() -> None:
    assert logs.why_of(ValueError("my\nbad")) == "ValueError: my bad"
    assert logs.why_of(KeyError("x")) == "KeyError: 'x'"
    assert logs.why_of(ValueError()) == "ValueError"
    assert logs.why_of("no room") == "no room"


def test_places_are_remembered_as_far_as_there_is_room() -> None:
    traces = logs.Traces("entrepot.")
    errors = []
    for number in range(logs.PLACES + 1):
        try:
            exec(compile("\n" * number + "raise ValueError", "made.py", "exec"))
        except ValueError as error:
            errors.append(error)
    assert all(traces.of(error) for error in errors[:-1])
    assert not any(traces.of(error) for error in errors[:-1])
    assert traces.of(errors[-1])
    assert traces.of(errors[0])


def test_a_recursion_is_one_place_however_deep() -> None:
    def down(left: int) -> None:
        if left == 0:
            raise ValueError("the end")
        down(left - 1)

    traces, given = logs.Traces("entrepot."), []
    for depth in (3, 5, 9):
        with pytest.raises(ValueError, match="the end") as told:
            down(depth)
        given.append(traces.of(told.value) is not None)
    assert given == [True, False, False]


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


def test_a_traceback_can_be_written_by_every_handler() -> None:
    """Whatever the error says, also without ``setup``; the record has the error as it is."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)  # with Python's own formatter
    logger = logging.Logger("anybody's")
    logger.addHandler(handler)
    logger.addFilter(logs.traced)
    with pytest.raises(ValueError, match="red") as told:
        raise ValueError("\x1b[31m red \udcff\n\tin two lines")
    trace = logs.Traces("nobody.").of(told.value)
    assert trace is not None
    assert trace[1] is told.value
    logger.warning("failed", exc_info=trace)
    stream.getvalue().encode()
    assert stream.getvalue().endswith("ValueError: \\x1b[31m red \\udcff\n\tin two lines\n")
