"""A stranger finds out from ``--help`` what there is and how to use it, and quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from entrepot import __version__
from entrepot.cli import main
from entrepot.cli.client import ClientCommands
from entrepot.cli.commands import Commands, Lazy
from entrepot.cli.reference import commands, page

DOCS = Path(__file__).parents[3] / "docs"


def run(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(line)
    said = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0, said.out, said.err


def test_the_commands_are_listed_with_a_whole_sentence_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name, (_, line) in Commands.table.items():
        assert f"  {name} " in out
        assert line in out, "the sentence was cut"


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert code == 2
    assert "Commands:" in out + err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"entrepot {__version__}\n", "")


@pytest.mark.parametrize(("path", "command"), commands(), ids=[path for path, _ in commands()])
def test_every_help_has_an_example_of_the_command(
    path: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *path.split()[1:], "--help")
    assert (code, err) == (0, "")
    example = out.partition("Example")[2].partition("Options:")[0]
    assert path in example
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("group", [Commands, ClientCommands])
def test_the_listed_sentence_is_the_first_of_the_help(group: type[Lazy]) -> None:
    made = group(name="group")
    for name, (_, line) in group.table.items():
        assert made.load(name).help.startswith(line)


def test_every_option_says_what_it_takes_and_its_unit() -> None:
    for path, command in commands():
        for parameter in command.params:
            assert parameter.help, f"{path} {parameter.name}"
            if parameter.metavar == "SECONDS":
                assert "second" in parameter.help.lower(), f"{path} {parameter.name}"
            if parameter.metavar == "SIZE":
                assert "bytes" in parameter.help, f"{path} {parameter.name}"


def test_the_page_of_commands_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "entrepot.cli.reference"],
        capture_output=True,
        text=True,
        check=True,
        env={"ENTREPOT_CLIENT__SLOTS": "7"},  # must make no difference
    )
    assert (DOCS / "cli.md").read_text() == made.stdout


def test_the_page_has_every_option_of_every_help(capsys: pytest.CaptureFixture[str]) -> None:
    written = page()
    for path, _ in commands():
        section = written.partition(f"## {path}\n")[2].partition("\n## ")[0]
        _, out, _ = run(capsys, *path.split()[1:], "--help")
        options = out.partition("Options:")[2]
        for word in options.split():
            if word.startswith("--") and word.strip(",.") != "--help":
                assert word.strip(",.") in section, f"{path} {word}"


def test_the_help_imports_nothing_heavy() -> None:
    """`entrepot --help` is fast because it loads no library but the one that prints it."""
    script = (
        "import sys\n"
        "from entrepot.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "import json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    loaded = json.loads(done.stderr)
    heavy = {"numpy", "zmq", "pydantic", "pydantic_settings", "rich", "msgspec", "re2", "torch"}
    assert not heavy.intersection(loaded)
