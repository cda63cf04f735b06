"""The doctor of stores: what is right passes, and each thing that is wrong is found and named."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from entrepot.cli.commands import app
from entrepot.doctor import store as doctor
from entrepot.doctor.finding import Finding, Level
from entrepot.errors import ConditionalPutIgnored, StoreUnreachable
from entrepot.store import EMPTY, Record, Store
from entrepot.store.calls import Calls
from entrepot.store.folder import FolderStore
from entrepot.store.memory import MemoryStore


def checked(url: str, **sizes: int) -> list[Finding]:
    return list(doctor.check_store(url, **{"clients": 4, "names": 12, **sizes}))


def levels(findings: list[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


class Wrong(MemoryStore):
    """A store in memory with something wrong with it."""

    def view(self, **options: Any) -> MemoryStore:
        other = type(self)(wall=self._wall)
        other._objects = self._objects
        other.url = self.url
        return other


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[MemoryStore]:
    """``Store.open`` gives views of the store that is put in here."""
    here: list[MemoryStore] = []
    monkeypatch.setattr(Store, "open", staticmethod(lambda url, **_: here[0].view()))
    return here


def found(opened: list[MemoryStore], store: MemoryStore, said: str) -> Finding:
    """The one finding that is not good."""
    opened.append(store)
    findings = checked("memory:x")
    (bad,) = [finding for finding in findings if finding.level is not Level.OK]
    assert said in bad.said
    return bad


# --- what is right ----------------------------------------------------------------------


def test_a_folder_passes_and_nothing_is_left(tmp_path: Path) -> None:
    findings = checked(str(tmp_path / "store"), clients=16, names=50)
    assert levels(findings) == {Level.OK}, findings
    said = "\n".join(finding.said for finding in findings)
    assert "16 clients raced for 50 names: one winner each" in said
    files = [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert files == ["store.json"]


def test_a_store_in_memory_passes(opened: list[MemoryStore]) -> None:
    opened.append(MemoryStore())
    assert levels(checked("memory:x")) == {Level.OK}


# --- what is wrong ----------------------------------------------------------------------


class GivesToAll(Wrong):
    def claim(
        self,
        name: str,
        digest: str = EMPTY,
        meta: Mapping[str, str] | None = None,
        *,
        nonce: str | None = None,
    ) -> bool:
        self.bind(name, digest, meta, nonce=nonce)
        return True


class GivesToNobody(Wrong):
    def _create(self, key: str, record: Record, data: bytes) -> bool:
        super()._create(key, record, data)
        return False


class SaysAnother(Wrong):
    """The record is not the winner's."""

    def _create(self, key: str, record: Record, data: bytes) -> bool:
        won = super()._create(key, record, data)
        self._replace(key, record, data)
        return won


@pytest.mark.parametrize("kind", [GivesToAll, GivesToNobody, SaysAnother])
def test_a_name_that_not_exactly_one_gets(opened: list[MemoryStore], kind: type[Wrong]) -> None:
    opened.append(kind())
    findings = checked("memory:x")
    assert any(
        "12 names that 4 clients raced for" in finding.said and "do not use" in finding.remedy
        for finding in findings
        if finding.level is Level.FAIL
    )


class ReadsOld(Wrong):
    """As behind a cache: a name is as it was when it was read first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.cache: dict[str, bytes | None] = {}

    def _read(self, key: str) -> bytes | None:
        if "/read" not in key:
            return super()._read(key)
        return self.cache.setdefault(key, super()._read(key))


class ListsLate(Wrong):
    def scan(self, prefix: str = "") -> list[Record]:
        return []


def test_a_record_that_is_seen_late(opened: list[MemoryStore]) -> None:
    bad = found(opened, ReadsOld(), "what is bound was not there for another client 19 of 20")
    assert bad.level is Level.FAIL
    assert "cache" in bad.remedy


def test_a_listing_that_is_late(opened: list[MemoryStore]) -> None:
    bad = found(opened, ListsLate(), "was not there for another client 20 of 20")
    assert bad.level is Level.FAIL


def test_a_clock_that_is_off(opened: list[MemoryStore]) -> None:
    bad = found(opened, Wrong(wall=lambda: time.time() - 3600), "3.6e+03 s ahead of the store's")
    assert bad.level is Level.WARN


class Broken(Wrong):
    def _create(self, key: str, record: Record, data: bytes) -> bool:
        raise StoreUnreachable("the endpoint went away")


def test_an_endpoint_that_goes_away(opened: list[MemoryStore]) -> None:
    opened.append(Broken())
    findings = checked("memory:x")
    assert findings[-1].level is Level.FAIL
    assert "the endpoint went away" in findings[-1].said


def test_what_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = checked(str(tmp_path / "no" / "folder"))
    assert finding.level is Level.FAIL
    assert "there is no folder" in finding.said

    def refuse(url: str, **_: Any) -> Store:
        raise ConditionalPutIgnored("http://host:9000 wrote twice")

    monkeypatch.setattr(Store, "open", refuse)
    (finding,) = checked("s3://bucket?endpoint=http://host:9000")
    assert (finding.level, finding.said) == (Level.FAIL, "http://host:9000 wrote twice")
    assert "docs/stores.md" in finding.remedy


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLinks(Calls):
        @staticmethod
        def link(*arguments: Any, **options: Any) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(
        Store, "open", staticmethod(lambda url, **_: FolderStore(tmp_path, calls=NoLinks()))
    )
    warned = [finding for finding in checked(str(tmp_path)) if finding.level is Level.WARN]
    assert ["no hard links" in finding.said for finding in warned] == [True]


# --- the command ------------------------------------------------------------------------


def test_the_command_looks_at_each_store(tmp_path: Path) -> None:
    good = str(tmp_path / "store")
    ran = CliRunner().invoke(app, ["doctor", "store", good, "--json"])
    assert ran.exit_code == 0
    assert {json.loads(line)["subject"] for line in ran.stdout.splitlines()} == {"store"}
    ran = CliRunner().invoke(app, ["doctor", "store", str(tmp_path / "a" / "b"), good])
    assert ran.exit_code == 1
    assert "fail  store   there is no folder" in ran.stdout
    assert "one winner each" in ran.stdout


def test_the_command_wants_to_know_which(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["doctor", "store"])
    assert ran.exit_code == 2
    assert "entrepot doctor store URL" in ran.output
