"""A store's folder may lie directly below ``/``, as the volume of a container does."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from entrepot.cli import main
from entrepot.errors import ConfigurationError
from entrepot.store import Store
from entrepot.store.calls import Calls
from entrepot.store.files import Files
from entrepot.store.folder import FolderStore
from entrepot.store.making import make_store
from entrepot.store.opening import check_url
from tests.unit.store.folder_faults import Hooked


@pytest.fixture
def folder() -> Iterator[Path]:
    if not os.access("/", os.W_OK):
        pytest.skip("this user may not write to /")
    path = Path("/") / f"entrepot-test-{secrets.token_hex(8)}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_the_folder_above_one_below_the_root_is_the_root() -> None:
    """Every user may sync ``/``: no folder has to be made for it."""
    opened: list[str] = []

    def hook(name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if name == "open":
            opened.append(arguments[0])
        return call()

    Files("/studies", durable=True, calls=Hooked(hook)).sync_folder("/studies")
    assert opened == ["/"]
    Files("/", durable=True, calls=Calls()).sync_folder("//store.json")


def test_a_store_below_the_root_is_made_at_once(folder: Path) -> None:
    with Store(folder) as store:
        assert store.claim("a")
    with Store(folder, read_only=True) as store:
        assert store.resolve("a") is not None


def test_the_command_makes_one_below_the_root_also_by_a_path_from_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(SystemExit) as ended:
        main(["store", "init", folder.name])
    assert ended.value.code in (0, None)
    assert capfd.readouterr().out == f"made a store at {folder.name}\n"


@pytest.mark.parametrize("path", [None, 7, b"/studies", "", "a\0b"])
@pytest.mark.parametrize("opened", [Store, Store.open, FolderStore, check_url, make_store])
def test_what_is_no_path_is_refused_in_one_sentence(
    opened: Callable[[Any], Any], path: Any
) -> None:
    with pytest.raises(ConfigurationError, match="a store needs a path, got"):
        opened(path)


def test_whether_a_store_was_made_is_known_of_a_url_with_signs_that_are_encoded(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/my%20studies"
    assert make_store(url)
    assert not make_store(url)
    assert (tmp_path / "my studies" / "store.json").is_file()
