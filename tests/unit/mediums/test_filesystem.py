"""Files under the suite for all mediums, and what is particular to them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.errors import (  # noqa: E402
    BadAddress,
    Closed,
    ConfigurationError,
    MediumDenied,
    MediumError,
    MediumFull,
    MediumGone,
)
from entrepot.mediums import FilesystemMedium, Medium, attach, file_place, filesystem  # noqa: E402
from entrepot.settings import SupplierSettings  # noqa: E402
from entrepot.testing import MediumContract  # noqa: E402
from tests.integration.needs import lacking  # noqa: E402


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that clients and suppliers share."""
    directory = tmp_path / "shared"
    directory.mkdir()
    monkeypatch.setenv("ENTREPOT_SUPPLIER__FILE_ROOT", str(directory))
    monkeypatch.setenv("ENTREPOT_CLIENT__FILE_ROOT", str(directory))
    return directory


@pytest.mark.usefixtures("root")
class TestFilesystemMedium(MediumContract):
    bad_places = (
        *MediumContract.bad_places,
        "entrepot-",
        "entrepot-" + "0" * 31,
        "entrepot-" + "0" * 33,
        "entrepot-" + "F" * 32,
        "/entrepot-" + "0" * 32,
        "./entrepot-" + "0" * 32,
        "x/../entrepot-" + "0" * 32,
        "entrepot-" + "0" * 32 + "\n",
        "entrepot-" + "0" * 32 + "/",
        "entrepot-net-" + "0" * 32,
    )

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> FilesystemMedium:
        return FilesystemMedium.create(slot_nbytes, slots, poison=poison)


class TestNetworkFilesystemMedium(TestFilesystemMedium):
    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> FilesystemMedium:
        return FilesystemMedium.create(slot_nbytes, slots, poison=poison, network=True)


PLACE = "entrepot-" + "f0" * 16
ADDRESS = f"file:{PLACE}"


def path_of(medium: Medium, root: Path) -> Path:
    return root / medium.address.removeprefix("file:")


def run(script: str, *arguments: str) -> str:
    """What a Python of its own prints; it must end well and be silent on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- the file ---------------------------------------------------------------------------


def test_the_whole_file_is_allocated_at_once(root: Path) -> None:
    with FilesystemMedium.create(10_000, 100) as medium:
        found = path_of(medium, root).stat()
        assert found.st_size == medium.nbytes
        assert found.st_blocks * 512 >= medium.nbytes


def test_a_file_system_that_cannot_allocate_is_filled(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with FilesystemMedium.create(3 << 20, 1) as medium:
        assert path_of(medium, root).stat().st_blocks * 512 >= medium.nbytes
        assert medium.read(0, medium.nbytes) == bytes(medium.nbytes)


def test_only_its_user_may_open_it_unless_asked_for(root: Path) -> None:
    before = os.umask(0o077)
    try:
        with (
            FilesystemMedium.create(8, 1) as private,
            FilesystemMedium.create(8, 1, mode=0o660) as shared,
            shared.renew() as fresh,
        ):
            modes = [
                stat.S_IMODE(path_of(each, root).stat().st_mode)
                for each in (private, shared, fresh)
            ]
        assert modes == [0o600, 0o660, 0o660]
    finally:
        os.umask(before)


@pytest.mark.parametrize(("what", "hint"), [("attach", "0o660"), ("create", "may not make files")])
def test_another_user_is_told_what_to_do(what: str, hint: str) -> None:
    if os.geteuid() != 0:
        lacking("takes another user's identity, which root may")
    script = (
        "import os, sys; from entrepot.mediums import FilesystemMedium, attach\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    if sys.argv[1] == 'attach': FilesystemMedium.attach(sys.argv[2], root=sys.argv[3])\n"
        "    else: FilesystemMedium.create(8, 1, root=sys.argv[3])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with FilesystemMedium.create(8, 1, root=directory) as medium:
            said = run(script, what, medium.address, directory)
    assert said.startswith(MediumDenied.__name__)
    assert hint in said


def test_a_file_that_is_larger_than_may_be(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(MediumFull, match=r"4194304 bytes .* are free"):
            FilesystemMedium.create(1 << 20, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(root.iterdir())


def test_more_than_any_disk_has(root: Path) -> None:
    for slot_nbytes in (2**62, 2**80):
        with pytest.raises(MediumFull, match=str(slot_nbytes * 2)):
            FilesystemMedium.create(slot_nbytes, 2)
    assert not list(root.iterdir())


def test_names_are_random_so_that_a_client_never_meets_an_old_file(root: Path) -> None:
    with FilesystemMedium.create(8, 1) as old:
        old.write(0, b"old")
        with FilesystemMedium.create(8, 1) as fresh:
            assert fresh.address != old.address
            assert fresh.read(0, 8) == bytes(8)
            assert len(list(root.iterdir())) == 2


# --- where it is ------------------------------------------------------------------------


def test_an_address_says_nothing_of_the_directory(root: Path) -> None:
    with FilesystemMedium.create(8, 1) as medium:
        assert "/" not in medium.address
        assert root.name not in medium.address


def test_client_and_supplier_may_know_the_directory_by_other_paths(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "elsewhere"
    other.symlink_to(root)
    monkeypatch.setenv("ENTREPOT_SUPPLIER__FILE_ROOT", str(other))
    with FilesystemMedium.create(8, 1) as medium, attach(medium.address) as supplier:
        supplier.write(0, b"seen", 8)
        assert medium.read(0, 4) == b"seen"


def test_the_root_may_be_an_argument_or_a_setting(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with FilesystemMedium.create(8, 1, root=other) as medium:
        assert path_of(medium, other).exists()
        with pytest.raises(MediumGone, match=str(root)):
            attach(medium.address)
        FilesystemMedium.attach(medium.address, root=other).close()
        attach(medium.address, settings=SupplierSettings(file_root=str(other))).close()


def test_a_directory_that_was_relative_stays_where_it_was(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with FilesystemMedium.create(8, 1, root=root.name) as medium:
        supplier = FilesystemMedium.attach(medium.address, root=root.name)
        monkeypatch.chdir("/")
        assert not medium.gone()
        assert not supplier.gone()
        with medium.renew() as fresh:
            assert path_of(fresh, root).exists()
        supplier.close()
    assert not list(root.iterdir())


def test_no_files_are_taken_unless_a_directory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENTREPOT_SUPPLIER__FILE_ROOT", raising=False)
    monkeypatch.delenv("ENTREPOT_CLIENT__FILE_ROOT", raising=False)
    with pytest.raises(MediumDenied, match="ENTREPOT_SUPPLIER__FILE_ROOT"):
        attach(ADDRESS)
    with pytest.raises(ConfigurationError, match="ENTREPOT_CLIENT__FILE_ROOT"):
        FilesystemMedium.create(8, 1)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    for use in (
        lambda: FilesystemMedium.create(8, 1, root=tmp_path / "missing"),
        lambda: FilesystemMedium.attach(ADDRESS, root=tmp_path / "missing"),
        lambda: filesystem.sweep(tmp_path / "missing"),
    ):
        with pytest.raises(ConfigurationError, match="missing is not a directory"):
            use()


# --- what else may lie at an address ----------------------------------------------------


def test_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    for to in (target, Path("..", "precious"), root / PLACE):
        (root / PLACE).symlink_to(to)
        with pytest.raises(BadAddress):
            attach(ADDRESS)
        (root / PLACE).unlink()
    assert target.read_bytes() == b"precious"


def test_a_second_name_of_a_file_elsewhere_is_refused(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    os.link(target, root / PLACE)
    with pytest.raises(BadAddress, match="not a file of its own"):
        attach(ADDRESS)


def test_what_is_no_file_is_refused_and_does_not_block(root: Path) -> None:
    place = root / PLACE
    os.mkfifo(place)
    with pytest.raises(BadAddress):
        attach(ADDRESS)
    place.unlink()
    place.mkdir()
    with pytest.raises(BadAddress):
        attach(ADDRESS)
    place.rmdir()
    with socket.socket(socket.AF_UNIX) as listening:
        at = os.open(root, os.O_PATH)
        try:  # a socket's path is short
            listening.bind(f"/proc/self/fd/{at}/{PLACE}")
        finally:
            os.close(at)
        with pytest.raises(BadAddress):
            attach(ADDRESS)


def test_a_file_that_was_not_finished_is_gone(root: Path) -> None:
    (root / PLACE).touch()
    with pytest.raises(MediumGone, match="did not finish"):
        attach(ADDRESS)


def test_a_link_that_is_swapped_in_is_never_followed(root: Path, tmp_path: Path) -> None:
    """Whatever lies there at whichever moment, what is outside of the directory stays as it is."""
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (root / "file").write_bytes(bytes(8))
    (root / "link").symlink_to(target)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for name in ("file", "link"):
                (root / name).rename(root / PLACE)
                (root / PLACE).rename(root / name)

    swapping = threading.Thread(target=swap)
    swapping.start()
    attached = refused = 0
    try:
        while attached < 20 or refused < 20:
            try:
                with attach(ADDRESS) as supplier:
                    supplier.write(0, b"written!", 8)
                    attached += 1
            except MediumGone:
                pass
            except BadAddress:
                refused += 1
    finally:
        done.set()
        swapping.join()
    assert target.read_bytes() == b"precious"


# --- files that change under who uses them ----------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4095, 100_000])
def test_a_file_that_was_cut_short_is_an_error_for_both_sides(root: Path, size: int) -> None:
    with FilesystemMedium.create(100_000, 2) as medium, attach(medium.address) as supplier:
        offset = medium.offset(1)
        supplier.write(offset, b"x" * 100_000, 100_000)
        os.truncate(path_of(medium, root), size)
        for side in (supplier, medium):
            for write in (side.write, side.write_checksummed):
                with pytest.raises(MediumError, match=f"has {size} bytes .* cut it short"):
                    write(offset, b"y", 100_000)
            with pytest.raises(MediumError, match="cut it short"):
                side.read(offset, 100_000)
            with pytest.raises(MediumError, match="cut it short"):
                side.checksum(offset, 100_000)
        assert path_of(medium, root).stat().st_size == size


CUT_ALL_THE_TIME = """
import os, sys, threading
from entrepot.errors import MediumError
from entrepot.mediums import FilesystemMedium, attach
medium = FilesystemMedium.create(1 << 20, 2)
supplier = attach(medium.address)
path = os.path.join(os.environ["ENTREPOT_CLIENT__FILE_ROOT"], medium.address[5:])
done = threading.Event()
def cut():
    while not done.is_set():
        os.truncate(path, 0)
        os.truncate(path, medium.nbytes)
cutting = threading.Thread(target=cut)
cutting.start()
data = os.urandom(1 << 20)
ends = {"well": 0, "told": 0}
offset = medium.offset(1)
while min(ends.values()) < 30:
    try:
        supplier.write_checksummed(offset, data, 1 << 20)
        medium.checksum(offset, 1 << 20)
        bytes(medium.view(offset, 1 << 20))
        bytes(supplier.view(offset, 1 << 20))
        ends["well"] += 1
    except MediumError:
        ends["told"] += 1
done.set()
cutting.join()
supplier.close()
medium.close()
print("alive")
"""


def test_a_file_that_is_cut_again_and_again_kills_nobody(root: Path) -> None:
    """Through a mapping this would be SIGBUS, for the writer and for the reader."""
    assert run(CUT_ALL_THE_TIME) == "alive\n"


def test_what_was_verified_is_what_is_served(root: Path) -> None:
    """A supplier that was thought dead writes late, into a slot that somebody looks at."""
    with FilesystemMedium.create(64, 1) as medium, attach(medium.address) as zombie:
        said = zombie.write_checksummed(0, b"good", 64)
        assert medium.checksum(0, 4) == said
        window = medium.view(0, 4)
        zombie.write(0, b"late", 64)
        os.truncate(path_of(medium, root), 0)
        assert window.tobytes() == b"good"
        assert medium.view(0, 4).tobytes() == b"good"


def test_a_disk_that_is_full_at_a_write_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems promise room and copy on write."""

    def refuse(fd: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with FilesystemMedium.create(64, 1) as medium, attach(medium.address) as supplier:
        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(MediumFull, match=r"4 bytes .* bytes are free"):
            supplier.write(0, b"full", 64)


def test_a_disk_that_fails_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with FilesystemMedium.create(64, 1) as medium, attach(medium.address) as supplier:
        monkeypatch.setattr(os, "pwrite", fail)
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(MediumError, match="could not be written"):
            supplier.write(0, b"x", 64)
        with pytest.raises(MediumError, match="could not be read"):
            medium.checksum(0, 4)


def test_calls_that_do_a_part_are_gone_on_with(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, real_read = os.pwrite, os.preadv

    def write_some(fd: int, data: memoryview, offset: int) -> int:
        return real_write(fd, data[:1000], offset)

    def read_some(fd: int, targets: list[memoryview], offset: int) -> int:
        return real_read(fd, [targets[0][:1000]], offset)

    monkeypatch.setattr(os, "pwrite", write_some)
    monkeypatch.setattr(os, "preadv", read_some)
    data = os.urandom(300_001)
    with FilesystemMedium.create(len(data), 2) as medium, attach(medium.address) as supplier:
        said = supplier.write_checksummed(medium.offset(1), data, len(data))
        assert medium.checksum(medium.offset(1), len(data)) == said
        assert medium.view(medium.offset(1), len(data)).tobytes() == data


# --- network file systems ---------------------------------------------------------------


def test_on_a_network_writes_are_flushed_and_reads_open_the_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_open, real_sync = os.open, os.fdatasync

    def opening(path: Any, *arguments: Any, **more: Any) -> int:
        done.append("open")
        return real_open(path, *arguments, **more)

    def syncing(fd: int) -> None:
        done.append("flush")
        real_sync(fd)

    with (
        FilesystemMedium.create(64, 1, network=True) as medium,
        attach(medium.address) as supplier,
    ):
        monkeypatch.setattr(os, "open", opening)
        monkeypatch.setattr(os, "fdatasync", syncing)
        supplier.write(0, b"seen", 64)
        assert done == ["flush"]
        medium.checksum(0, 4)
        assert done == ["flush", "open"]
        assert medium.view(0, 4).tobytes() == b"seen"


def test_on_a_network_another_file_under_the_name_is_not_read(root: Path) -> None:
    with FilesystemMedium.create(64, 1, network=True) as medium:
        medium.write(0, b"mine")
        path = path_of(medium, root)
        path.rename(root / "aside")
        path.write_bytes(b"other" + bytes(59))
        assert medium.read(0, 4) == b"mine"
        path.unlink()


def test_on_a_network_only_this_machines_dead_are_swept(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another machine's locks may not be seen here."""
    with FilesystemMedium.create(8, 1, network=True) as medium:
        name = path_of(medium, root).name
    mine = root / name
    elsewhere = root / (name[:13] + "00000000" + name[21:])
    local = root / PLACE
    for dead in (mine, elsewhere, local):
        dead.write_bytes(b"dead")
    assert filesystem.sweep(root, network=True) == [name]
    assert elsewhere.exists()
    assert filesystem.sweep(root) == [PLACE]
    assert elsewhere.exists()
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another\n")
    monkeypatch.setattr(file_place, "BOOT_ID", boot_id)
    with FilesystemMedium.create(8, 1, network=True) as other:
        assert path_of(other, root).name[:21] != name[:21]


def test_a_file_system_without_locks_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(MediumError, match=r"lock.* No locks available"):
        FilesystemMedium.create(8, 1)
    assert not list(root.iterdir())


# --- owners and suppliers that end ------------------------------------------------------

OWNER = """
import sys
from entrepot.mediums import FilesystemMedium
medium = FilesystemMedium.create(4096, 2)
medium.write(0, b"mine")
print(medium.address, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that owns a file, and the address; killed on leaving."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_killed_owners_file_is_swept_and_a_living_ones_is_not(root: Path) -> None:
    with owner() as (dead, address), owner() as (living, there):
        dead.kill()
        dead.wait()
        with attach(address) as orphan:
            with FilesystemMedium.create(8, 1) as medium:
                assert {f"file:{path.name}" for path in root.iterdir()} == {there, medium.address}
            assert orphan.gone()
            assert orphan.read(0, 4) == b"mine"  # only its name goes, never what it holds
        assert living.stdin is not None
        living.stdin.close()
        living.wait()
        assert not list(root.iterdir())


FORKED = """
import os, sys
from entrepot.mediums import FilesystemMedium, filesystem
root = os.environ["ENTREPOT_CLIENT__FILE_ROOT"]
medium = FilesystemMedium.create(4096, 2)
for ending in (medium.close, medium.unlink, lambda: None, sys.exit):
    child = os.fork()
    if not child:
        ending()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not medium.gone()
    assert filesystem.sweep(root) == []
ready, go = os.pipe(), os.pipe()
child = os.fork()
if not child:
    os.close(go[1])
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os._exit(0)
os.read(ready[0], 1)
os.close(medium._owned.lock_fd)  # as the kernel does when the owner is killed
assert filesystem.sweep(root) == [medium.address[5:]], "the child holds the lock"
os.close(go[1])
os.waitpid(child, 0)
os._exit(0)
"""


def test_a_forked_child_neither_unlinks_nor_keeps_the_lock(root: Path) -> None:
    assert run(FORKED) == ""


def test_a_suppliers_end_leaves_the_file(root: Path) -> None:
    script = (
        "import sys; from entrepot.mediums import attach\n"
        "attach(sys.argv[1]).write(0, b'made', 64)\n"
    )
    with FilesystemMedium.create(64, 1) as medium:
        run(script, medium.address)
        assert not medium.gone()
        assert medium.read(0, 4) == b"made"


def test_close_while_other_threads_write(root: Path) -> None:
    """A writer that is overtaken by ``close`` finishes or is told, in no file but its own."""
    data = bytes(1 << 20)
    for _ in range(10):
        medium = FilesystemMedium.create(len(data), 2)
        writing = threading.Barrier(3)
        ends: list[str] = []

        def write(
            slot: int,
            medium: FilesystemMedium = medium,
            writing: threading.Barrier = writing,
            ends: list[str] = ends,
        ) -> None:
            writing.wait()
            try:
                while True:
                    medium.write_checksummed(medium.offset(slot), data)
            except Closed:
                ends.append("told")

        threads = [threading.Thread(target=write, args=(slot,)) for slot in range(2)]
        for thread in threads:
            thread.start()
        writing.wait()
        medium.close()
        with (root / "other").open("w+b") as other:  # gets the number, if it was let go too early
            for thread in threads:
                thread.join()
            assert other.read() == b""
        assert ends == ["told", "told"]


def test_a_thousand_leave_no_descriptor(root: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(500):
        with FilesystemMedium.create(64, 2) as medium, attach(medium.address) as supplier:
            supplier.write(0, b"x", 64)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not list(root.iterdir())


@pytest.mark.parametrize("odd", ["", 5, b"/tmp", "nul\0", "/nowhere/at/all"])
def test_a_root_that_is_no_directory_is_refused_with_what_it_is(odd: Any) -> None:
    """An empty one is not the folder that the process happens to be in."""
    with pytest.raises(ConfigurationError) as refused:
        FilesystemMedium.create(8, 1, root=odd)
    said = str(refused.value)
    assert said.isprintable()
    assert "directory" in said


@pytest.mark.parametrize("mode", ["660", -1, 1 << 20, 0o1777, None])
def test_a_mode_that_is_none_is_refused(root: Path, mode: Any) -> None:
    with pytest.raises(ConfigurationError, match="mode"):
        FilesystemMedium.create(8, 1, root=root, mode=mode)
    assert not list(root.iterdir())
