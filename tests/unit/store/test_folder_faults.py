"""Folders whose calls fail, lie, or are overtaken: what a claim, a bind and a put make of that."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from entrepot.errors import (
    ClaimUnsettled,
    ConfigurationError,
    CorruptBlob,
    StoreDenied,
    StoreError,
    StoreFormat,
    StoreFull,
    StoreReadOnly,
    StoreUnreachable,
)
from entrepot.store import Store
from entrepot.store.calls import Calls
from entrepot.store.folder import FolderStore
from entrepot.store.layout import blob_key, key_of
from entrepot.store.record import EMPTY, Record, digest_of, pack_record
from tests.unit.store.folder_faults import Hooked

NAME = "spam/trial/7/0"
NONCE = "0123456789abcdef" * 2


class Script:
    """Has calls of one name fail or do something else, once the store is open."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.on: dict[str, Callable[[Callable[[], Any], tuple[Any, ...]], Any]] = {}

    def __call__(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self.log.append(name)
        return self.on[name](call, arguments) if name in self.on else call()

    def fail(self, name: str, number: int, *, done: bool = False, times: int = 10**9) -> None:
        """The next calls of this name fail; ``done``: although they did what they were to do."""
        left = [times]

        def failing(call: Callable[[], Any], _: tuple[Any, ...]) -> Any:
            if not left[0]:
                return call()
            left[0] -= 1
            if done:
                call()
            raise OSError(number, os.strerror(number), f"a {name}")

        self.on[name] = failing


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def store(tmp_path: Path, script: Script) -> FolderStore:
    """A store whose calls go through the script."""
    store = FolderStore(tmp_path / "store", calls=Hooked(script), torn_grace_s=0.05)
    store.claim("spam/trial/0/0")  # the block's folder is there
    script.log.clear()
    return store


@pytest.fixture
def other(store: FolderStore) -> FolderStore:
    return FolderStore(store.path, torn_grace_s=0.05)


def left_in_tmp(store: FolderStore) -> list[str]:
    return [path.name for path in (store.path / "tmp").iterdir()]


def leave_torn(store: FolderStore, name: str, *, old: bool = True) -> Path:
    path = store.path / key_of(name)
    path.write_bytes(b"")
    if old:
        os.utime(path, (1, 1))
    return path


# --- the order of calls -----------------------------------------------------------------


def test_a_claim_and_a_bind_are_synced_before_they_show_and_after(
    store: FolderStore, script: Script
) -> None:
    store.claim(NAME)
    assert script.log == [
        "open",  # nobody has it
        *("open", "write", "fsync", "close"),
        "link",
        *("open", "fsync", "close"),
        "unlink",
    ]
    script.log.clear()
    store.bind(NAME)
    assert script.log == [
        *("open", "write", "fsync", "close"),
        "rename",
        *("open", "fsync", "close"),
    ]
    script.log.clear()
    assert not store.claim(NAME)
    assert script.log == ["open", "read", "close"]


def test_without_durability_nothing_is_synced(tmp_path: Path, script: Script) -> None:
    store = FolderStore(tmp_path / "store", durable=False, calls=Hooked(script))
    store.claim(NAME, store.put(b"x"))
    store.bind(NAME, store.put(b"x"))
    assert "fsync" not in script.log
    script.log.clear()
    store.claim("spam/trial/8/0")
    assert script.log == ["open", "open", "write", "close", "link", "unlink"]
    script.log.clear()
    store.bind("spam/trial/8/0")
    assert script.log == ["open", "write", "close", "rename"]


def test_a_blob_is_synced_before_it_shows_and_after(store: FolderStore, script: Script) -> None:
    store.put(b"first in its folder")
    script.log.clear()
    # The same first two hex digits, found by trying.
    first = digest_of(b"first in its folder")
    data = next(b"%d" % n for n in range(9999) if digest_of(b"%d" % n)[:9] == first[:9])
    store.put(data)
    assert script.log == [
        "open",
        *("open", "write", "fsync", "close"),
        "rename",
        *("open", "fsync", "close"),
    ]
    script.log.clear()
    store.put(data)
    assert script.log.count("fsync") == 2, "whoever wrote it may not have synced it yet"


# --- a lost answer: done, and said to have failed ---------------------------------------


@pytest.mark.parametrize(
    "number", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT, errno.ENOENT, errno.EPERM]
)
def test_a_link_that_was_made_and_said_to_have_failed(
    store: FolderStore, other: FolderStore, script: Script, number: int
) -> None:
    script.fail("link", number, done=True, times=1)
    assert store.claim(NAME, meta={"who": "me"})
    assert not other.claim(NAME)
    found = other.resolve(NAME)
    assert found is not None
    assert found.meta == {"who": "me"}
    assert store.claim("spam/trial/8/0"), "one lost answer says nothing about links"
    assert left_in_tmp(store) == []


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_a_rename_that_was_made_and_said_to_have_failed(
    store: FolderStore, other: FolderStore, script: Script, number: int
) -> None:
    script.fail("rename", number, done=True, times=1)
    store.bind(NAME, meta={"who": "me"})
    found = other.resolve(NAME)
    assert found is not None
    assert found.meta == {"who": "me"}
    assert left_in_tmp(store) == []


# --- a failure --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [
        (errno.ENOSPC, StoreFull, "has no room.*bytes and .* files are free"),
        (errno.EDQUOT, StoreFull, "has no room"),
        (errno.EROFS, StoreReadOnly, "mounted read-only; open the store with read_only=True"),
        (errno.EACCES, StoreDenied, "user .* may not"),
        (errno.ESTALE, StoreUnreachable, "is it mounted"),
        (errno.EIO, StoreError, "Input/output error"),
        (errno.EMFILE, StoreError, "Too many open files"),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "link", "rename"])
def test_what_fails_leaves_nothing_and_says_why(
    store: FolderStore,
    other: FolderStore,
    script: Script,
    call: str,
    number: int,
    error: type[StoreError],
    said: str,
) -> None:
    other.bind("bound", meta={"is": "old"})
    script.fail(call, number)
    if call != "rename":
        with pytest.raises(error, match=said) as claimed:
            store.claim(NAME)
        # With no open there is no reading back either: then it is not known, and that is said.
        assert NAME in str(claimed.value)
    if call != "link":
        with pytest.raises(error, match=said):
            store.bind("bound", meta={"is": "new"})
        with pytest.raises(error, match=said):
            store.put(b"data")
    script.on.clear()
    assert left_in_tmp(store) == []
    assert other.resolve(NAME) is None
    assert [each.meta for each in other.scan("bound")] == [{"is": "old"}]
    assert list(other._blobs()) == []
    assert other.claim(NAME)


def test_a_half_written_record_is_removed(store: FolderStore, script: Script) -> None:
    def half(call: Callable[[], Any], arguments: tuple[Any, ...]) -> int:
        script.fail("write", errno.ENOSPC)
        return os.write(arguments[0], bytes(arguments[1])[:10])

    for name in ("link", "exclusive"):
        if name == "exclusive":
            store._claims.links = False
        script.on["write"] = half
        with pytest.raises(StoreFull):
            store.claim(NAME)
        script.on.clear()
        assert store.resolve(NAME) is None
        assert store.skipped.faults == {}
        assert left_in_tmp(store) == []


def test_a_short_write_goes_on(store: FolderStore, script: Script) -> None:
    def short(_: Callable[[], Any], arguments: tuple[Any, ...]) -> int:
        return os.write(arguments[0], bytes(arguments[1])[:7])

    script.on["write"] = short
    assert store.claim(NAME, store.put(b"data" * 100), {"a": "b" * 100})
    script.on.clear()
    found = store.resolve(NAME)
    assert found is not None
    assert found.meta == {"a": "b" * 100}
    assert store.get(found.digest) == b"data" * 100


def test_a_claim_that_cannot_be_read_back_says_so_and_is_settled_by_its_nonce(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    def landed_and_lost(call: Callable[[], Any], _: tuple[Any, ...]) -> None:
        call()
        script.fail("open", errno.EIO)
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    script.on["link"] = landed_and_lost
    with pytest.raises(ClaimUnsettled, match=f"nonce='{NONCE}'") as lost:
        store.claim(NAME, nonce=NONCE)
    assert (lost.value.name, lost.value.nonce) == (NAME, NONCE)
    script.on.clear()
    assert not other.claim(NAME)
    assert store.claim(NAME, nonce=lost.value.nonce)


def test_a_claim_that_may_not_outlive_a_power_cut_says_so(
    store: FolderStore, script: Script
) -> None:
    script.on["fsync"] = lambda call, arguments: call()
    script.log.clear()

    def second(call: Callable[[], Any], _: tuple[Any, ...]) -> None:
        if script.log.count("fsync") == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        call()

    script.on["fsync"] = second
    with pytest.raises(ClaimUnsettled, match="power cut") as unsure:
        store.claim(NAME)
    script.on.clear()
    script.log.clear()
    assert store.claim(NAME, nonce=unsure.value.nonce)
    assert script.log.count("fsync") == 1, "what is settled late is synced late"


def test_a_folder_that_cannot_be_synced_is_not_an_error(store: FolderStore, script: Script) -> None:
    def of_folders(call: Callable[[], Any], arguments: tuple[Any, ...]) -> None:
        if stat.S_ISDIR(os.fstat(arguments[0]).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        call()

    script.on["fsync"] = of_folders
    assert store.claim(NAME, store.put(b"x"))
    store.bind(NAME)


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(
    store: FolderStore, script: Script
) -> None:
    store.claim(NAME)
    script.fail("open", errno.ESTALE, times=2)
    assert store.resolve(NAME) is not None
    script.fail("open", errno.ESTALE)
    with pytest.raises(StoreUnreachable):
        store.resolve(NAME)


# --- no hard links ----------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_links_that_are_refused_later_are_done_without(
    store: FolderStore, other: FolderStore, script: Script, number: int
) -> None:
    assert store.claims == "link"
    script.fail("link", number)
    assert store.claim(NAME)
    assert not other.claim(NAME)
    assert not store.claim(NAME)
    script.log.clear()
    assert store.claim("spam/trial/8/0")
    assert "link" not in script.log, "it is not asked again"
    assert left_in_tmp(store) == []


def test_a_record_that_is_being_written_is_taken_and_not_served(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    seen: list[Any] = []

    def while_empty(call: Callable[[], Any], _: tuple[Any, ...]) -> Any:
        if (store.path / key_of(NAME)).exists():
            seen.append((other.resolve(NAME), other.claim(NAME), other.scan(NAME)))
        return call()

    store._claims.links = False
    script.on["write"] = while_empty
    assert store.claim(NAME)
    assert seen == [(None, False, [])]


def test_a_torn_name_is_free_after_the_grace_and_one_of_many_gets_it(
    store: FolderStore, other: FolderStore
) -> None:
    leave_torn(store, NAME, old=False)
    assert not store.claim(NAME), "somebody may be writing it"
    path = leave_torn(store, NAME)
    assert store.claim(NAME, meta={"who": "me"})
    assert not other.claim(NAME)
    found = other.resolve(NAME)
    assert found is not None
    assert found.meta == {"who": "me"}
    assert path.stat().st_size > 0
    assert left_in_tmp(store) == []


def test_whoever_looks_again_sees_that_another_took_the_torn_name(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    leave_torn(store, NAME)

    def beaten(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if "/take-" in str(arguments[0]):
            script.on.clear()
            assert other.claim(NAME, meta={"who": "other"})
        return call()

    script.on["open"] = beaten
    assert not store.claim(NAME)
    found = store.resolve(NAME)
    assert found is not None
    assert found.meta == {"who": "other"}
    assert left_in_tmp(store) == []


def test_a_taker_that_is_at_work_is_waited_for_and_a_dead_one_is_not(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    leave_torn(store, NAME)
    said: list[bool] = []

    def slow(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if "/take-" in str(arguments[0]):
            said.append(other.claim(NAME))
        return call()

    script.on["rename"] = slow
    assert store.claim(NAME)
    assert said == [False]
    # A dead one: its file is in the way, and old.
    leave_torn(store, NAME)
    script.fail("rename", errno.EIO)
    with pytest.raises(StoreError):
        store.claim(NAME)
    (taking,) = [path for path in (store.path / "tmp").iterdir() if path.name.startswith("take-")]
    assert taking.name.endswith("-0")
    assert not other.claim(NAME)
    os.utime(taking, (1, 1))
    assert other.claim(NAME)


def test_foreign_and_later_files_are_never_taken_over(store: FolderStore) -> None:
    record = pack_record(Record(NAME, EMPTY, {}, 1.0, "me", "0" * 32))
    for data in (b"by hand", record.replace(b"}\n", b',"format":2}\n'), b'{"name":"a"}'):
        path = leave_torn(store, NAME)
        path.write_bytes(data)
        os.utime(path, (1, 1))
        assert not store.claim(NAME)
        assert path.read_bytes() == data


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link", "pipe", "socket"])
def test_what_is_no_file_blocks_nothing_but_its_name(store: FolderStore, kind: str) -> None:
    path = store.path / key_of(NAME)
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(store.path / key_of("spam/trial/0/0"))
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.mknod(path, 0o140644)
    assert store.resolve(NAME) is None
    assert not store.claim(NAME)
    assert [each.name for each in store.scan()] == ["spam/trial/0/0"]
    if kind != "folder":  # which is one among others, and empty
        assert key_of(NAME) in store.skipped.faults


def test_hidden_files_and_folders_are_nobodys_business(store: FolderStore) -> None:
    block = store.path / "names/spam/trial/000000"
    (block / ".nfs00000000deadbeef00000001").write_bytes(b"a record that is still being read")
    (block / ".8.0.json").write_bytes(b"")
    shutil.copytree(block, store.path / "names/.snapshot/hourly")
    assert [each.name for each in store.scan()] == ["spam/trial/0/0"]
    assert store.skipped.faults == {}


def test_nothing_is_taken_over_by_a_wrong_clock(store: FolderStore) -> None:
    leave_torn(store, NAME, old=False)
    store._clock.anchor(time.time() + 3600)
    store._claims._grace_s = 60.0
    assert not store.claim(NAME)


# --- gc beside a put --------------------------------------------------------------------


def old_blob(store: FolderStore, data: bytes) -> str:
    digest = store.put(data)
    os.utime(store.path / blob_key(digest), (1, 1))
    return digest


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_put_that_meets_gc_keeps_its_blob(
    store: FolderStore, other: FolderStore, script: Script, at: str
) -> None:
    digest = old_blob(other, b"data")

    def meanwhile(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if "/gc-" not in str(arguments[1]):
            return call()
        script.on.clear()
        if at == "before":
            other.put(b"data")
            return call()
        call()
        assert other.get(digest) == b"data", "a reader finds what gc has taken and may put back"
        other.put(b"data")
        return None

    script.on["rename"] = meanwhile
    swept = store.gc(100, dry_run=False)
    assert swept.digests == ([] if at == "before" else [digest])
    assert other.get(digest) == b"data"
    assert store.gc(100, dry_run=False).digests == [], "and it is young"
    assert left_in_tmp(store) == []


def test_gc_that_takes_a_blob_while_a_put_looks_at_it(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    digest = old_blob(other, b"data")

    def collected(call: Callable[[], Any], _: tuple[Any, ...]) -> Any:
        # The file is open, and its time not yet set: the last moment at which gc may take it.
        script.on.clear()
        assert other.gc(100, dry_run=False).digests == [digest]
        return call()

    script.on["utime"] = collected
    assert store.put(b"data") == digest
    assert other.get(digest) == b"data"


def test_a_bind_that_meets_gc_keeps_its_blob(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    digest = old_blob(other, b"checkpoint")

    def named(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        if "/gc-" in str(arguments[1]):
            script.on.clear()
            other.bind(NAME, digest)  # a digest that was known, and not put again
        return call()

    script.on["rename"] = named
    assert store.gc(100, dry_run=False).digests == []
    assert other.get(digest) == b"checkpoint"


def test_gc_that_slept_while_a_sweep_put_its_blob_back(
    store: FolderStore, other: FolderStore, script: Script
) -> None:
    digest = old_blob(other, b"data")

    def asleep(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        call()
        if "/gc-" in str(arguments[1]):
            script.on.clear()
            other._blobs_here.sweep(time.time() + 1000)

    script.on["rename"] = asleep
    assert store.gc(100, dry_run=False).digests == []
    assert (store.path / blob_key(digest)).exists()
    assert store.gc(100, dry_run=False).digests == [], "what was put back is young"


def test_a_blob_that_is_damaged_and_gone_says_which(store: FolderStore) -> None:
    digest = store.put(b"data")
    (store.path / blob_key(digest)).write_bytes(b"dat")
    with pytest.raises(CorruptBlob, match=digest):
        store.get(digest)


def test_a_blob_of_another_users_is_written_anew(store: FolderStore, script: Script) -> None:
    digest = old_blob(store, b"data")
    script.fail("utime", errno.EPERM)
    assert store.put(b"data") == digest
    script.on.clear()
    assert (store.path / blob_key(digest)).stat().st_mtime > 1


# --- opening ----------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("below", [".", "store"])
def test_a_file_is_no_folder_for_a_store(tmp_path: Path, below: str, read_only: bool) -> None:
    file = tmp_path / "afile"
    file.write_text("mine")
    with pytest.raises(StoreUnreachable, match=r"afile is a file, .*give a folder") as told:
        Store.open(str(file / below), read_only=read_only)
    assert "file system mounted" not in str(told.value)
    assert file.read_text() == "mine"


def test_a_store_makes_its_own_folder_and_none_above(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match="is its file system mounted"):
        Store(tmp_path / "mnt" / "store")
    assert not (tmp_path / "mnt").exists()
    store = Store(tmp_path / "store")
    assert isinstance(store, FolderStore)
    assert sorted(path.name for path in store.path.iterdir()) == [
        *("blobs", "names", "store.json", "tmp")
    ]


def test_read_only_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match="no folder"):
        Store(tmp_path / "store", read_only=True)
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreFormat, match=r"no store in .* yet"):
        Store(tmp_path / "store", read_only=True)
    assert list((tmp_path / "store").iterdir()) == []


def test_read_only_makes_no_call_that_writes(tmp_path: Path, script: Script) -> None:
    with Store(tmp_path / "store") as store:
        store.claim(NAME, store.put(b"x"))
    reader = FolderStore(tmp_path / "store", read_only=True, calls=Hooked(script))
    reader.scan()
    reader.get(digest_of(b"x"))
    reader.resolve(NAME)
    assert set(script.log) <= {"open", "close", "read", "fstat", "stat", "lstat", "scandir"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format":2,"claims":"link"}', "format 2, and this release knows 1; install a later"),
        ("hello", "not what a store has there"),
        ('{"claims":"link"}', "not what a store has there"),
    ],
)
def test_what_is_another_store_is_not_opened(tmp_path: Path, text: str, said: str) -> None:
    with Store(tmp_path / "store"):
        pass
    (tmp_path / "store" / "store.json").write_text(text)
    for read_only in (True, False):
        with pytest.raises(StoreFormat, match=said):
            Store(tmp_path / "store", read_only=read_only)


@pytest.mark.parametrize("data", [b"", bytes(30)])
def test_a_torn_store_json_is_written_again(tmp_path: Path, data: bytes) -> None:
    with Store(tmp_path / "store") as store:
        store.claim(NAME)
    (tmp_path / "store" / "store.json").write_bytes(data)
    with Store(tmp_path / "store") as store:
        assert not store.claim(NAME)
    assert (tmp_path / "store" / "store.json").read_text() == '{"format":1,"claims":"link"}\n'


def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "two words%20ñ"
    store = Store(path)
    assert store.url == f"file://{tmp_path}/two%20words%2520%C3%B1"
    store.claim(NAME)
    monkeypatch.chdir(tmp_path)
    for url in (store.url, str(path), path, "two words%20ñ"):
        again = Store.open(url, read_only=True)
        assert again.url == store.url
        assert again.resolve(NAME) is not None
    assert repr(store) == f"FolderStore({store.url!r})"
    wrong: list[Any] = ["", "http://u:secret@h/a", "file://u:secret@h/a", "file:///a?b=c", 7, b"/a"]
    for each in wrong:
        with pytest.raises(ConfigurationError) as refused:
            Store.open(each)
        assert "secret" not in str(refused.value)


def test_a_store_is_opened_again_in_a_process_that_is_spawned_with_it(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store", durable=False, torn_grace_s=7.0, writer="me")
    again = pickle.loads(pickle.dumps(store))
    assert (again.url, again.read_only, again._files.durable) == (store.url, False, False)
    assert again._torn_grace_s == 7.0
    assert again.claim(NAME)
    found = store.resolve(NAME)
    assert found is not None
    assert found.writer == "me"
    reader = pickle.loads(pickle.dumps(FolderStore(tmp_path / "store", read_only=True)))
    assert (reader.read_only, reader._files.durable) == (True, True)


@pytest.mark.parametrize("grace_s", [0, -1, float("nan"), "1"])
def test_the_grace_of_torn_records_is_a_time(tmp_path: Path, grace_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="torn_grace_s"):
        FolderStore(tmp_path / "store", torn_grace_s=grace_s)


def test_two_stores_that_are_made_at_once_are_one(tmp_path: Path, script: Script) -> None:
    def first(call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        script.on.clear()
        with Store(tmp_path / "store") as store:
            assert store.claim(NAME)
        return call()

    script.on["rename"] = first
    store = FolderStore(tmp_path / "store", calls=Hooked(script))
    assert not store.claim(NAME)


def test_the_defaults_are_the_systems_calls() -> None:
    assert (Calls.link, Calls.rename, Calls.fsync) == (os.link, os.rename, os.fsync)
