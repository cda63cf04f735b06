"""``--serve`` finds a stranger's own file, and says in one line why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrepot.cli.loading import load_function
from entrepot.errors import ConfigurationError


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A working folder with a stranger's files; modules that they add are forgotten again."""
    (tmp_path / "mine_x.py").write_text(
        "import json\nclass Maker:\n    def make(self, name): return name.encode()\n"
        "maker = Maker()\nNUMBER = 7\ndef make(name): return b'x'\n"
    )
    (tmp_path / "raises_x.py").write_text("\n\nraise RuntimeError('no GPU here')\n")
    (tmp_path / "needs_x.py").write_text("import a_package_that_is_not_there\n")
    (tmp_path / "syntax_x.py").write_text("a = 1\ndef make(:\n")
    package = tmp_path / "pack_x"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("def make(name): return b'part'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.partition(".")[0].endswith("_x"):
            del sys.modules[name]


def test_a_file_in_the_working_folder() -> None:
    assert load_function("mine_x:make")("a") == b"x"


def test_a_module_of_a_package() -> None:
    assert load_function("pack_x.part:make")("a") == b"part"


def test_a_method_of_an_object() -> None:
    assert load_function("mine_x:maker.make")("ñ") == "ñ".encode()


@pytest.mark.parametrize("name", ["", "mine_x", "mine_x:", ":make", "mine_x.make", "..:make"])
def test_another_form_is_refused_with_the_right_one(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"give package\.module:function"):
        load_function(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_x:make", r"no module 'nowhere_x' in .*; give package"),
        ("nowhere_x.part:make", r"no module 'nowhere_x.part'"),
        ("pack_x.other:make", r"no module 'pack_x.other'"),
        ("mine_x.part:make", r"no module 'mine_x.part'"),
        ("mine_x:other", r"no 'other' in module 'mine_x' \(.*mine_x\.py\); it has Maker, make$"),
        ("mine_x:maker.other", "no 'maker.other'"),
        ("mine_x:NUMBER", "'mine_x:NUMBER' is of type int and cannot be called"),
        ("raises_x:make", r"RuntimeError: no GPU here at .*raises_x\.py:3"),
        ("needs_x:make", r"No module named 'a_package_that_is_not_there' at .*needs_x\.py:1"),
        ("syntax_x:make", r"SyntaxError: .* at .*syntax_x\.py:2"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as told:
        load_function(name)
    assert "\n" not in str(told.value)
