"""Exit codes, and how faults are told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from entrepot.cli import main

ABSENT = "tcp://127.0.0.1:1"  # nobody listens there


def run(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(line)
    said = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0, said.out, said.err


QUIET = ["--timeout", "0.2", "--log-level", "error"]

ASKING = [
    ["stats", "--frontend", ABSENT, "--timeout", "0.2"],
    ["drain", "--frontend", ABSENT, "--timeout", "0.2"],
    ["client", "pull", "x", "--frontend", ABSENT, "--broker-timeout", "0.2"],
    ["supplier", "--serve", "json:dumps", "--product", "x", "--backend", ABSENT, *QUIET],
]


@pytest.mark.parametrize("line", ASKING, ids=lambda line: line[0])
def test_an_absent_broker_is_named_in_two_lines(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *line)
    assert (code, out) == (1, "")
    assert err.startswith("error (broker_unavailable): ")
    assert ABSENT in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("line", ASKING, ids=lambda line: line[0])
def test_with_json_a_fault_is_an_object_too(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *line, "--json")
    said = json.loads(out.splitlines()[-1])
    assert code == 1
    assert (said["event"], said["code"]) == ("error", "broker_unavailable")
    assert ABSENT in said["message"]
    for each in out.splitlines():
        json.loads(each)


@pytest.mark.parametrize(
    "line",
    [
        ["nonsense"],
        ["broker", "--nonsense"],
        ["supplier"],
        ["client", "pull"],
        ["client", "pull", "x", "--count", "0"],
        ["client", "pull", "x", "--slot-size", "huge"],
        ["client", "pull", "x", "--timeout", "nan"],
        ["client", "pull", "x", "--broker-timeout", "-1"],
        ["stats", "--timeout", "soon"],
        ["stats", "--interval", "0"],
        ["drain", "--wait", "-1"],
        ["client", "pull", "x", "--json", "--output", "-"],
        ["supplier", "--serve", "json:dumps", "--product", "x", "--credit", "0"],
        ["stats", "--log-level", "info"],
        ["broker", "--log-level", "chatty"],
    ],
)
def test_a_line_that_makes_no_sense_exits_with_2(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *line)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(?=a)b", "(?="), ("a(", "'a('"), (r"a\Z", "invalid escape"), ("a{2000}", "a{2000}")],
)
def test_a_bad_pattern_is_named_without_a_broker(
    pattern: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["supplier", "--serve", "json:dumps", "--product", pattern, "--backend", ABSENT]
    code, _, err = run(capsys, *line, "--timeout", "0.2")
    assert code == 1
    assert err.startswith("error (pattern_refused): ")
    assert said in err


@pytest.mark.parametrize("endpoint", ["nonsense", "http://127.0.0.1:1", "tcp://127.0.0.1:nan"])
def test_an_endpoint_that_cannot_be_one_is_named(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "broker", "--frontend", endpoint)
    assert code == 1
    assert err.startswith("error (configuration): ")
    assert endpoint in err
    code, _, err = run(capsys, "stats", "--frontend", endpoint, "--timeout", "0.2")
    assert code == 1
    assert endpoint in err


def test_a_setting_that_cannot_be_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENTREPOT_BROKER__DEAD_S", "soon")
    code, _, err = run(capsys, "settings")
    assert code == 1
    assert "ENTREPOT_BROKER__DEAD_S='soon'" in err


def test_a_variable_is_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENTREPOT_CLIENT__ENDPOINT", "tcp://127.0.0.1:2")
    code, _, err = run(capsys, "stats", "--timeout", "0.2")
    assert code == 1
    assert "tcp://127.0.0.1:2" in err


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    target = str(tmp_path / "file" / "folder")
    code, _, err = run(capsys, "client", "pull", "x", "--output", target)
    assert code == 1
    assert target in err


def test_no_folder_is_not_this_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty variable in a script must not have it write where it happens to be."""
    code, _, err = run(capsys, "client", "pull", "x", "--output", "")
    assert code == 1
    assert (
        err
        == "error (configuration): --output '' names no folder; give one, . for this one, or -\n"
    )


def test_a_message_of_many_lines_is_told_in_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from entrepot.errors import ConfigurationError

    def fails() -> None:
        raise ConfigurationError("one\n  two tcp://user:hunter2@host:1")

    monkeypatch.setattr("entrepot.cli.settings.current", fails)
    _, _, err = run(capsys, "settings")
    assert err == "error (configuration): one two tcp://***@host:1\n"


def test_the_search_path_is_not_changed_by_asking(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.path[:]
    run(capsys, "settings")
    assert sys.path == before


def test_the_demonstration_without_numpy_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    code, _, err = run(capsys, "demo")
    assert code == 1
    assert "pip install 'entrepot[contract]'" in err
