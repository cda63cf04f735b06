"""A terminal or a file that cannot hold a sign is given its number, and the command goes on."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from entrepot.cli import main
from entrepot.logs import setup
from tests.unit.cli.studies import begin, fill

NAME = "🦆/ñandú"
READING = (
    ("study", "list"),
    ("study", "show", NAME),
    ("study", "best", NAME),
    ("study", "curves", NAME),
    ("study", "rescue", NAME, "--stale", "0"),
    ("study", "export", NAME),
    ("study", "delete", NAME, "--yes", "--force"),
    ("store", "ls"),
)
ENCODINGS = ("latin-1", "ascii", "cp1252", "utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a study, and a trial in it that somebody else runs."""
    path = tmp_path / "büro-🦆"
    fill(path, NAME)
    begin(path, 4, NAME, me="gpu-🦆")
    return path


def ran(line: tuple[str, ...], folder: Path, encoding: str) -> tuple[int, str, str]:
    """Exit code, and what was written to standard output and to standard error in ``encoding``."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    with pytest.raises(SystemExit) as left, redirect_stdout(out), redirect_stderr(err):
        main([*line[:2], str(folder), *line[2:]])
    said = []
    for stream in (out, err):
        stream.seek(0)
        said.append(stream.read())
    assert isinstance(left.value.code, int | None)
    return left.value.code or 0, said[0], said[1]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("line", READING, ids=" ".join)
def test_every_command_writes_what_it_can(
    line: tuple[str, ...], encoding: str, folder: Path
) -> None:
    code, out, err = ran(line, folder, encoding)
    assert code == 0, err
    if line[1] in ("list", "ls"):
        assert (NAME if encoding == "utf-8" else "\\U0001f986/") in out
        assert ("\\xf1and" if encoding == "ascii" else "ñandú") in out


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("line", [("study", "list"), ("store", "ls")], ids=" ".join)
def test_what_is_json_stays_json(line: tuple[str, ...], encoding: str, folder: Path) -> None:
    """``\\xf1`` and ``\\U0001f986`` are Python's, and none of JSON's."""
    code, out, err = ran((*line, "--json"), folder, encoding)
    assert code == 0, err
    said = [json.loads(each) for each in out.splitlines()]
    assert any(str(each.get("name", "")).startswith(NAME) for each in said)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_error_is_told_in_what_can_be_written(encoding: str, folder: Path) -> None:
    code, out, err = ran(("study", "show", "🦆🦆", "--json"), folder, encoding)
    assert code == 1
    assert err.startswith("error (")
    (told,) = (json.loads(each) for each in out.splitlines())
    assert "🦆🦆" in told["message"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_log_line_of_json_stays_json(encoding: str) -> None:
    """Standard error never refuses a sign: Python writes its number, as JSON does not."""
    logger = logging.getLogger("entrepot")
    before = logger.handlers[:], logger.level, logger.propagate
    err = io.BytesIO()
    stream = io.TextIOWrapper(err, encoding=encoding, errors="backslashreplace")
    try:
        setup("info", stream)
        logger.info("a supplier is lost", extra={"supplier": "ñandú 🦆"})
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
    stream.flush()
    assert json.loads(err.getvalue().decode(encoding))["supplier"] == "ñandú 🦆"


def test_a_choice_of_ones_own_is_kept(folder: Path) -> None:
    """In a process, as it is started by people: PYTHONIOENCODING says how to write, and what for
    the rest."""
    lines = {
        each: subprocess.run(
            [sys.executable, "-m", "entrepot.cli", "study", "list", folder],
            env={**os.environ, "PYTHONIOENCODING": each},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout.splitlines()[0]
        for each in ("latin-1", "ascii:replace")
    }
    assert lines["latin-1"].startswith("\\U0001f986/ñandú: ".encode("latin-1"))
    assert lines["ascii:replace"].startswith(b"?/?and?: ")
