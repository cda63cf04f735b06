"""Huge pages are a wish: what is made is the same with and without them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from entrepot.mediums import ShmMedium, huge, shm
from entrepot.mediums.huge import HUGE_NBYTES
from entrepot.mediums.memory import map_memory

SIZES = [1, 4096, HUGE_NBYTES - 1, HUGE_NBYTES, HUGE_NBYTES + 1, 3 * HUGE_NBYTES + 5000]


@pytest.fixture
def in_memory() -> Iterator[int]:
    """An empty file on the tmpfs of shared memory."""
    path = shm.DIRECTORY / f"huge-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    path.unlink()
    yield fd
    os.close(fd)


def allocated(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


@pytest.mark.parametrize("nbytes", SIZES)
def test_all_of_it_is_allocated_and_zero(in_memory: int, nbytes: int) -> None:
    huge.allocate(in_memory, nbytes)
    os.posix_fallocate(in_memory, 0, nbytes)
    assert os.fstat(in_memory).st_size == nbytes
    assert allocated(in_memory) >= nbytes
    assert os.pread(in_memory, nbytes + 1, 0) == bytes(nbytes)


def test_a_file_in_memory_gets_them(in_memory: int) -> None:
    os.pwrite(in_memory, b"\0", 0)
    if not huge._collapse(in_memory, HUGE_NBYTES):
        pytest.skip("this kernel makes no huge pages of files")
    os.ftruncate(in_memory, 0)
    huge.allocate(in_memory, 3 * HUGE_NBYTES + 5000)
    assert allocated(in_memory) == 3 * HUGE_NBYTES  # a page of each was all that was written


def test_no_more_is_taken_than_was_asked_for(in_memory: int) -> None:
    huge.allocate(in_memory, HUGE_NBYTES - 1)
    assert allocated(in_memory) == 0
    huge.allocate(in_memory, 2 * HUGE_NBYTES - 1)
    assert allocated(in_memory) <= HUGE_NBYTES


def test_a_file_on_a_disk_is_left_nearly_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        huge.allocate(file.fileno(), 4 * HUGE_NBYTES)
        if os.fstat(file.fileno()).st_size > 1:
            pytest.skip(f"{tmp_path} is in memory")
        assert path.read_bytes() in (b"", b"\0")


def test_a_file_that_cannot_be_written_or_mapped_is_let_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    try:
        huge.allocate(fd, 4 * HUGE_NBYTES)
    finally:
        os.close(fd)
    assert path.read_bytes() == b""
    read, write = os.pipe()
    huge.allocate(write, 4 * HUGE_NBYTES)
    os.close(read)
    os.close(write)


def test_nothing_stays_mapped(in_memory: int) -> None:
    huge.allocate(in_memory, 4 * HUGE_NBYTES)
    before = Path("/proc/self/maps").read_text().count("\n")
    for _ in range(20):
        os.ftruncate(in_memory, 0)
        huge.allocate(in_memory, 4 * HUGE_NBYTES)
    assert Path("/proc/self/maps").read_text().count("\n") < before + 10


def test_memory_without_a_file_is_as_usual() -> None:
    for nbytes in SIZES:
        memory = map_memory(-1, nbytes, "somewhere")
        assert memory.nbytes == nbytes
        assert memory.tobytes() == bytes(nbytes)
        memory[-1] = 7
        assert memory[-1] == 7
    with mmap.mmap(-1, HUGE_NBYTES) as shared:
        huge.prefer(shared)  # whether or not the kernel likes that


def test_a_segment_is_zero_where_there_are_huge_pages_too() -> None:
    with ShmMedium.create(3 * HUGE_NBYTES // 2, 3) as medium:
        assert medium.read(0, medium.nbytes) == bytes(medium.nbytes)
        assert allocated(medium._segment.lock_fd) >= medium.nbytes
