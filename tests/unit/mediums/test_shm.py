"""Shared memory under the suite for all mediums, and what is particular to it."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.errors import (  # noqa: E402
    BadAddress,
    Closed,
    MediumDenied,
    MediumError,
    MediumGone,
    SharedMemoryTooSmall,
)
from entrepot.mediums import ShmMedium, shm  # noqa: E402
from entrepot.mediums.buffers import checksum_of, checksum_of_copy  # noqa: E402
from entrepot.mediums.owned import random_token  # noqa: E402
from entrepot.testing import MediumContract  # noqa: E402
from tests.integration.needs import lacking  # noqa: E402

PLACE = "entrepot-" + "f0" * 16
ADDRESS = f"shm:{PLACE}"


class TestShmMedium(MediumContract):
    bad_places = (
        *MediumContract.bad_places,
        "sem.other",
        "entrepot-",
        "entrepot-" + "0" * 31,
        "entrepot-" + "0" * 33,
        "entrepot-" + "F" * 32,
        "/entrepot-" + "0" * 32,
        "../shm/entrepot-" + "0" * 32,
        "entrepot-" + "0" * 32 + "\n",
    )

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> ShmMedium:
        return ShmMedium.create(slot_nbytes, slots, poison=poison)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of ``/dev/shm``, in which nobody else makes or sweeps."""
    directory = tmp_path / "shm"
    directory.mkdir()
    monkeypatch.setattr(shm, "DIRECTORY", directory)
    return directory


@pytest.fixture
def place(directory: Path) -> Path:
    """A path that reads like a segment's."""
    return directory / PLACE


def path_of(medium: ShmMedium) -> Path:
    return shm.DIRECTORY / medium.address.removeprefix("shm:")


def test_what_its_owner_writes_shows_in_a_window_that_a_supplier_has() -> None:
    with ShmMedium.create(100, 1) as medium, ShmMedium.attach(medium.address) as supplier:
        window = supplier.view(0, 5)
        medium.write(0, b"later")
        assert (window.tobytes(), medium.shared) == (b"later", True)


# --- what is aimed at -------------------------------------------------------------------


def test_what_was_aimed_at_is_a_copy_that_was_summed() -> None:
    nbytes = 3_000_000  # in several pieces
    data = os.urandom(nbytes)
    with ShmMedium.create(nbytes, 2) as medium, ShmMedium.attach(medium.address) as supplier:
        start = medium.offset(1)
        memory = bytearray(nbytes)
        medium.grant(start, nbytes)
        medium.aim(start, memoryview(memory))
        assert supplier.write_checksummed(start, data, nbytes) == checksum_of(data)
        assert medium.landed(start) is None
        assert medium.checksum_written(start, nbytes) == checksum_of(data)
        landed = medium.landed(start)
        assert landed is not None
        assert (landed.obj is memory, memory == data) == (True, True)
        supplier.write(start, bytes(nbytes), nbytes)  # late, and not seen
        assert medium.read(start, nbytes) == medium.view(start, nbytes) == data
        assert medium.checksum(start, nbytes) == checksum_of(data)
        assert medium.read(medium.offset(0), 5) == bytes(5)
        medium.released(1)
        assert medium.landed(start) is None
        assert medium.read(start, 5) == bytes(5)
        assert memory == data


def test_the_sum_is_that_of_the_copy_whatever_becomes_of_what_was_copied() -> None:
    memory = memoryview(bytearray(range(100)))
    copy, data = memory[:60], memory[10:70]  # which changes as it is copied
    assert checksum_of_copy(copy, data) == checksum_of(bytes(range(10, 70)))
    assert bytes(data) != bytes(range(10, 70))


@pytest.mark.parametrize("more", [-1, 1])
def test_what_has_another_size_than_was_aimed_at_stays_in_its_slot(more: int) -> None:
    data = b"x" * (1000 + more)
    with ShmMedium.create(2000, 1) as medium:
        memory = bytearray(1000)
        medium.grant(0, 2000)
        medium.aim(0, memoryview(memory))
        medium.write(0, data, 2000)
        assert medium.checksum_written(0, len(data)) == checksum_of(data)
        assert medium.landed(0) is None
        assert medium.view(0, len(data)) == data
        assert memory == bytes(1000)


def test_the_next_order_does_not_come_where_the_last_one_was_aimed() -> None:
    with ShmMedium.create(1000, 1) as medium:
        for take_back in (lambda: medium.grant(0, 1000), lambda: medium.revoke(0)):
            memory = bytearray(1000)
            medium.aim(0, memoryview(memory))
            take_back()
            medium.write(0, b"y" * 1000)
            medium.checksum_written(0, 1000)
            assert medium.landed(0) is None
            assert memory == bytes(1000)


# --- the file ---------------------------------------------------------------------------


def test_the_whole_segment_is_allocated_at_once() -> None:
    with ShmMedium.create(10_000, 100) as medium:
        assert path_of(medium).stat().st_blocks * 512 >= medium.nbytes


def test_what_can_never_fit_is_refused_before_a_page_of_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def taken(*_: object) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr("entrepot.mediums.huge.allocate", taken)
    with pytest.raises(SharedMemoryTooSmall, match=str(100_000 << 30)):
        ShmMedium.create(100_000 << 30, 1)


def test_only_its_user_may_open_it_unless_asked_for() -> None:
    with ShmMedium.create(8, 1) as medium:
        assert stat.S_IMODE(path_of(medium).stat().st_mode) == 0o600
    before = os.umask(0o077)
    try:
        with ShmMedium.create(8, 1, mode=0o660) as medium, medium.renew() as fresh:
            assert stat.S_IMODE(path_of(medium).stat().st_mode) == 0o660
            assert stat.S_IMODE(path_of(fresh).stat().st_mode) == 0o660
    finally:
        os.umask(before)


def test_another_user_is_told_what_to_do() -> None:
    if os.geteuid() != 0:
        lacking("takes another user's identity, which root may")
    script = (
        "import os, sys; from entrepot.mediums import attach\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: attach(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with ShmMedium.create(8, 1) as medium:
        said = run(script, medium.address)
    assert said.startswith(MediumDenied.__name__)
    assert "0o660" in said


def run(script: str, *arguments: str) -> str:
    """What a Python of its own prints; it must end well and be silent on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_names_come_from_the_token_that_was_given() -> None:
    tokens = iter(["0a" * 16, "0b" * 16])
    with ShmMedium.create(8, 1, token=lambda: next(tokens)) as medium, medium.renew() as fresh:
        assert medium.address == "shm:entrepot-" + "0a" * 16
        assert fresh.address == "shm:entrepot-" + "0b" * 16


def test_a_name_that_is_taken_is_passed_over_and_not_harmed() -> None:
    with ShmMedium.create(8, 1) as taken:
        taken.write(0, b"mine")
        tokens = iter([taken.address.removeprefix("shm:entrepot-"), "0c" * 16])
        with ShmMedium.create(8, 1, token=lambda: next(tokens)) as other:
            assert other.address.endswith("0c" * 16)
        with pytest.raises(MediumError, match="another name each time"):
            ShmMedium.create(8, 1, token=lambda: taken.address.removeprefix("shm:entrepot-"))
        assert taken.read(0, 4) == b"mine"
        assert not taken.gone()


def test_a_token_that_is_not_hex_is_refused() -> None:
    with pytest.raises(BadAddress, match="32 hex digits"):
        ShmMedium.create(8, 1, token=lambda: "../../etc/passwd")


def test_more_than_any_machine_has(directory: Path) -> None:
    for slot_nbytes in (2**50, 2**62, 2**80):
        with pytest.raises(SharedMemoryTooSmall, match=str(slot_nbytes * 2)):
            ShmMedium.create(slot_nbytes, 2)
    assert not list(directory.iterdir())


# --- what else may lie at an address ----------------------------------------------------


def test_a_symlink_is_not_followed(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    place.symlink_to(target)
    with pytest.raises(BadAddress):
        ShmMedium.attach(ADDRESS)
    assert target.read_bytes() == b"precious"


def test_a_fifo_is_refused_and_does_not_block(place: Path) -> None:
    os.mkfifo(place)
    with pytest.raises(BadAddress, match="not a segment"):
        ShmMedium.attach(ADDRESS)


def test_a_directory_is_refused(place: Path) -> None:
    place.mkdir()
    with pytest.raises(BadAddress):
        ShmMedium.attach(ADDRESS)


def test_a_segment_that_was_not_finished_is_gone(place: Path) -> None:
    place.touch()
    with pytest.raises(MediumGone, match="did not finish"):
        ShmMedium.attach(ADDRESS)


def test_the_size_is_what_is_there_whatever_is_claimed(place: Path) -> None:
    place.write_bytes(bytes(100))
    with ShmMedium.attach(ADDRESS) as supplier:
        assert supplier.nbytes == 100
        assert supplier.write(90, b"x" * 10, 10) == 10
        with pytest.raises(IndexError, match="11 bytes at offset 90"):
            supplier.write(90, b"x", 11)


# --- closing ----------------------------------------------------------------------------


def mappings_of(name: str) -> int:
    return Path("/proc/self/maps").read_text().count(name)


def test_memory_goes_with_the_last_window_on_it() -> None:
    medium = ShmMedium.create(4096, 2)
    name = path_of(medium).name
    supplier = ShmMedium.attach(medium.address)
    window = medium.view(0, 10)
    part = window[2:4]
    assert mappings_of(name) == 2
    supplier.close()
    medium.close()
    assert mappings_of(name) == 1
    del window
    assert mappings_of(name) == 1
    assert part.tobytes() == b"\0\0"
    del part
    assert mappings_of(name) == 0


def test_close_while_other_threads_write() -> None:
    """A writer that is overtaken by ``close`` finishes its copy or is told, and never crashes."""
    data = bytes(1 << 20)
    for _ in range(20):
        medium = ShmMedium.create(len(data), 2)
        writing = threading.Barrier(3)
        ends: list[str] = []

        def write(
            slot: int,
            medium: ShmMedium = medium,
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
        for thread in threads:
            thread.join()
        assert ends == ["told", "told"]
        assert mappings_of(path_of(medium).name) == 0


def test_two_threads_that_close_at_once_close_one_descriptor() -> None:
    for _ in range(50):
        medium = ShmMedium.create(8, 1)
        ready = threading.Barrier(3)

        def close(medium: ShmMedium = medium, ready: threading.Barrier = ready) -> None:
            ready.wait()
            medium.close()

        threads = [threading.Thread(target=close) for _ in range(2)]
        for thread in threads:
            thread.start()
        ready.wait()
        # Whoever gets the freed number must not lose it to the second close.
        with ShmMedium.create(8, 1) as other:
            for thread in threads:
                thread.join()
            assert not other.gone()
            assert shm.sweep() == [] or not other.gone()


def test_an_ended_segment_does_not_end_another_under_its_old_descriptor() -> None:
    ended = ShmMedium.create(8, 1)
    ended.unlink()
    with ShmMedium.create(8, 1) as other:
        ended.unlink()
        ended.close()
        shm.sweep()
        assert not other.gone()
        other.write(0, b"mine")


# --- owners that start while another sweeps ---------------------------------------------


def test_a_sweeper_between_creation_and_lock_costs_a_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper takes the lock and unlinks before the owner asks for the lock."""
    real = fcntl.flock
    swept: list[Path] = []

    def flock(fd: int, operation: int) -> None:
        if not swept:
            swept.append(Path(f"/proc/self/fd/{fd}").readlink())
            assert _sweep_one(swept[0], real)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with ShmMedium.create(8, 1) as medium:
        assert len(swept) == 1
        assert path_of(medium) != swept[0]
        with ShmMedium.attach(medium.address) as supplier:
            supplier.write(0, b"there")
        assert medium.read(0, 5) == b"there"


def _sweep_one(path: Path, flock: Any) -> bool:
    with path.open("rb") as file:
        flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    return True


def test_a_sweeper_that_holds_the_lock_costs_a_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper has the lock, and has not unlinked, when the owner asks for the lock."""
    real = fcntl.flock
    held: list[Any] = []

    def flock(fd: int, operation: int) -> None:
        if not held:
            held.append(Path(f"/proc/self/fd/{fd}").open("rb"))  # noqa: SIM115
            real(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with ShmMedium.create(8, 1) as medium:
        lost = Path(f"/proc/self/fd/{held[0].fileno()}").readlink()
        assert str(lost).endswith("(deleted)")
        assert not medium.gone()
    held[0].close()


def test_a_sweeper_that_was_slow_leaves_what_took_the_name(
    directory: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it opened was swept by another, and the name belongs to a living owner by then."""
    real = fcntl.flock
    place.touch()
    living: list[ShmMedium] = []

    def flock(fd: int, operation: int) -> None:
        if not living:
            monkeypatch.setattr(fcntl, "flock", real)
            place.unlink()
            living.append(ShmMedium.create(8, 1, token=lambda: "f0" * 16))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert shm.sweep() == []
    assert not living[0].gone()
    living[0].close()


def test_sweeping_leaves_what_is_not_ours(directory: Path, place: Path) -> None:
    others = [
        directory / name
        for name in (f"{PLACE}-more", f"other-{'0' * 32}", PLACE.upper(), f".{PLACE}")
    ]
    place.write_bytes(b"dead")
    for other in others:
        other.write_bytes(b"x")
    assert shm.sweep() == [PLACE]
    assert not place.exists()
    assert all(other.exists() for other in others)


def test_sweeping_survives_what_it_cannot_open(place: Path, tmp_path: Path) -> None:
    place.mkdir()
    shm.sweep()
    assert place.exists()
    place.rmdir()
    place.symlink_to(tmp_path)
    shm.sweep()
    assert tmp_path.exists()


def test_no_shared_memory_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shm, "DIRECTORY", tmp_path / "missing")
    with pytest.raises(MediumError, match="file or TCP"):
        ShmMedium.create(8, 1)


# --- the standard library's tracker -----------------------------------------------------


def test_the_resource_tracker_never_hears_of_it() -> None:
    script = (
        "from multiprocessing import resource_tracker\n"
        "from entrepot.mediums import ShmMedium, attach\n"
        "with ShmMedium.create(8, 1) as medium, attach(medium.address) as supplier:\n"
        "    supplier.write(0, b'x')\n"
        "print(resource_tracker._resource_tracker._fd)\n"
    )
    assert run(script) == "None\n"


def test_names_are_random() -> None:
    tokens = {random_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"[0-9a-f]{32}", token) for token in tokens)
    assert all(len(set(column)) > 4 for column in itertools.islice(zip(*tokens, strict=True), 32))
