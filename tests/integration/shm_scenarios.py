"""What happens to shared memory when processes end, fork, and run out of it.

Each scenario is a function that runs in a process of its own, alone in a ``/dev/shm`` of its
own, and fails by raising::

    python -m tests.integration.shm_scenarios <scenario>

Roles are what a scenario starts further processes for. A role says ``ready`` when it is, and
goes on when its standard input gets a line or is closed.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from entrepot.errors import MediumGone, SharedMemoryTooSmall
from entrepot.mediums import Attachments, Medium, ShmMedium, attach
from entrepot.mediums.shm import sweep

SHM = Path("/dev/shm")
DEADLINE_S = 30.0

Process = subprocess.Popen[str]


# --- roles ------------------------------------------------------------------------------


def owner(slot_nbytes: str = "4096") -> None:
    """Owns a segment until it is told to end; then ends without closing it."""
    medium = ShmMedium.create(int(slot_nbytes), 2)
    medium.write(0, b"mine")
    _say(f"ready {medium.address}")
    sys.stdin.readline()
    assert not medium.gone()


def owner_that_forks() -> None:
    """Owns a segment, and has a forked child that lives on when the owner is killed."""
    medium = ShmMedium.create(4096, 2)
    child = os.fork()
    if not child:
        sys.stdin.readline()  # closed by the scenario only after it has looked
        os._exit(0)
    _say(f"ready {medium.address} {child}")
    os.waitpid(child, 0)


def supplier(address: str) -> None:
    """Attaches, writes, and ends without closing, by itself or by a signal."""
    medium = attach(address)
    medium.write(0, b"made", 4096)
    _say("ready")
    sys.stdin.readline()


def churn(times: str) -> None:
    """Makes, uses and closes segments, each of which sweeps; all of them must be its own."""
    _say("ready")
    sys.stdin.readline()
    for turn in range(int(times)):
        with ShmMedium.create(64, 2) as medium, attach(medium.address) as writer:
            data = turn.to_bytes(4, "little")
            writer.write(0, data, 64)
            assert medium.read(0, 4) == data
            assert not medium.gone()


# --- a full /dev/shm (of 1 MiB) ---------------------------------------------------------


def full() -> None:
    asked = 4096 * 1000
    for _ in range(3):
        try:
            ShmMedium.create(4096, 1000)
        except SharedMemoryTooSmall as error:
            said = str(error)
        else:
            raise AssertionError("there was room for 4 MB in 1 MiB")
        for part in (
            f"{asked} bytes",
            "1048576 of 1048576 bytes are free",
            "shm_size",
            "sizeLimit",
        ):
            assert part in said, said
        assert _names() == []


def filled_to_the_last_page() -> None:
    """Whatever was given can be written, all of it: no SIGBUS however little is left."""
    mediums = []
    slot_nbytes = 300_000
    while slot_nbytes >= 2048:
        try:
            mediums.append(ShmMedium.create(slot_nbytes, 2))
        except SharedMemoryTooSmall:
            slot_nbytes //= 2
    assert len(mediums) > 1
    room = os.statvfs(SHM)
    assert room.f_bavail * room.f_frsize < 8192
    for medium in mediums:
        with attach(medium.address) as writer:
            writer.write(0, b"x" * medium.nbytes, medium.nbytes)
        assert medium.read(0, medium.nbytes) == b"x" * medium.nbytes
    try:
        mediums[0].renew()
    except SharedMemoryTooSmall:
        pass
    else:
        raise AssertionError("there was room for one more")
    assert len(_names()) == len(mediums)
    for medium in mediums:
        medium.close()
    assert _names() == []
    ShmMedium.create(4096, 200).close()


def full_of_a_killed_owners() -> None:
    """What a killed owner left is out of the way before memory is asked for."""
    with _role("owner", "400000") as (process, address):
        try:
            ShmMedium.create(400_000, 2)
        except SharedMemoryTooSmall:
            pass
        else:
            raise AssertionError("there was room for both")
        _kill(process)
        assert _names() == [address]
        with ShmMedium.create(400_000, 2) as medium:
            assert _names() == [medium.address]


# --- owners that end --------------------------------------------------------------------


def a_killed_owners_segment_is_swept() -> None:
    with _role("owner") as (process, address), _role("owner") as (_, living):
        _kill(process)
        assert sorted(_names()) == sorted([address, living])
        with attach(address) as orphan:
            assert orphan.read(0, 4) == b"mine"  # only its name will go, never its memory
            with ShmMedium.create(8, 1) as medium:
                assert sorted(_names()) == sorted([living, medium.address])
            assert orphan.gone()
            assert orphan.read(0, 4) == b"mine"


def a_living_owners_segment_is_not_swept() -> None:
    with _role("owner") as (process, address):
        for _ in range(20):
            assert sweep() == []
            ShmMedium.create(8, 1).close()
        with attach(address) as there:
            assert there.read(0, 4) == b"mine"
        _finish(process)
    assert _names() == []


def an_owner_in_another_pid_namespace_is_living_and_then_dead() -> None:
    unshare = [_path_of("unshare"), "--pid", "--fork", "--kill-child"]
    with _role("owner", before=unshare) as (process, address):
        assert sweep() == []
        ShmMedium.create(8, 1).close()
        assert _names() == [address]
        _kill(process)  # and with it, --kill-child, the owner: in its own time
        _until(lambda: sweep() == [_name_of(address)])
    assert _names() == []


def a_sweeper_in_another_pid_namespace_leaves_the_living() -> None:
    unshare = [_path_of("unshare"), "--pid", "--fork", "--kill-child"]
    with ShmMedium.create(8, 1) as mine, _role("owner") as (dead, _):
        _kill(dead)
        with _role("owner", before=unshare) as (process, swept_at):
            assert sorted(_names()) == sorted([mine.address, swept_at])
            assert not mine.gone()
            _finish(process)
        assert _names() == [mine.address]


def owners_that_start_and_sweep_at_once() -> None:
    with _many("churn", "150", count=4) as processes:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            assert process.wait(DEADLINE_S) == 0
    assert _names() == []


@contextmanager
def _many(role: str, *arguments: str, count: int) -> Iterator[list[Process]]:
    if not count:
        yield []
        return
    with (
        _many(role, *arguments, count=count - 1) as others,
        _role(role, *arguments) as (process, _),
    ):
        yield [*others, process]


def an_exit_without_close_leaves_nothing() -> None:
    endings = ("pass", "raise SystemExit(3)", "1 / 0", "del medium", "import gc; gc.disable()")
    for ending in endings:
        script = (
            "from entrepot.mediums import ShmMedium\n"
            "medium = ShmMedium.create(8, 1)\n"
            "window = medium.view(0, 8)\n" + ending
        )
        subprocess.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL, check=False)
        assert _names() == [], ending


# --- suppliers that end -----------------------------------------------------------------


def a_suppliers_end_leaves_the_clients_segment() -> None:
    """However it ends; the peer's takes the client's segment with it, by the tracker."""
    with ShmMedium.create(4096, 2) as medium:
        for ending in (None, signal.SIGTERM, signal.SIGKILL):
            medium.write(0, b"----")
            with _role("supplier", medium.address) as (process, _):
                assert medium.read(0, 4) == b"made"
                if ending is None:
                    _finish(process)
                else:
                    process.send_signal(ending)
                    assert process.wait(DEADLINE_S) == -ending
            assert _names() == [medium.address], ending
            assert not medium.gone()
            with attach(medium.address) as after:
                after.write(0, b"next", 4096)
            assert medium.read(0, 4) == b"next"


def a_killed_clients_segments_do_not_stay_mapped() -> None:
    with Attachments(16) as attachments:
        for _ in range(3):
            with _role("owner") as (process, address):
                attachments.get(address)
                _kill(process)
            sweep()
            try:
                attachments.get(address)
            except MediumGone:
                pass
            else:
                raise AssertionError("a segment that is gone was served")
        with ShmMedium.create(8, 1) as living:
            attachments.get(living.address)
            assert len(attachments) == 1
            maps = Path("/proc/self/maps").read_text()
            assert {line.rsplit("/", 1)[-1] for line in maps.splitlines() if str(SHM) in line} == {
                _name_of(living.address)
            }


# --- forks ------------------------------------------------------------------------------


def a_forked_childs_end_does_not_unlink() -> None:
    medium = ShmMedium.create(4096, 2)
    endings: list[Callable[[Medium], None]] = [
        lambda inherited: inherited.close(),
        lambda inherited: inherited.unlink(),
        lambda inherited: inherited.__exit__(None, None, None),
        lambda _: None,
        lambda _: sys.exit(0),
        lambda inherited: _use_another(inherited),
    ]
    for ending in endings:
        child = os.fork()
        if not child:
            # As in a program of its own: exit handlers and finalizers run.
            ending(medium)
            del medium
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not medium.gone()
        assert _names() == [medium.address]
        assert sweep() == []  # nor does the child's end take the lock
    medium.close()
    assert _names() == []


def _use_another(inherited: Medium) -> None:
    """A child may own segments of its own, also under the descriptor that it let go of."""
    inherited.write(0, b"seen")
    with ShmMedium.create(8, 1) as own, inherited.renew() as renewed:
        inherited.close()
        assert not own.gone()
        assert sweep() == []
        assert len(_names()) == 3
        renewed.write(0, b"x")


def a_forked_child_does_not_keep_a_dead_owner_alive() -> None:
    with _role("owner_that_forks") as (process, said):
        address, child = said.split()
        assert sweep() == []
        _kill(process)
        os.kill(int(child), 0)  # the child lives, and has the segment mapped
        _until(lambda: sweep() == [_name_of(address)])  # it lets go of the lock as its first act
        os.kill(int(child), signal.SIGKILL)


# --- many -------------------------------------------------------------------------------


def ten_thousand() -> None:
    """No descriptor, mapping, file or memory is left by any of them; nor a word on stderr."""
    for _ in range(100):
        ShmMedium.create(4096, 2).close()
    before = _held()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for turn in range(10_000):
        medium = ShmMedium.create(4096, 2)
        medium.write(0, b"x")
        if turn % 2:
            medium.unlink()
        medium.close()
    assert _names() == []
    assert _held() == before
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown_kib < 2048, grown_kib


def _held() -> tuple[int, int]:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    mappings = Path("/proc/self/maps").read_text().count(str(SHM))
    return descriptors, mappings


# --- tools ------------------------------------------------------------------------------


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _role(
    role: str, *arguments: str, before: list[str] | None = None
) -> Iterator[tuple[Process, str]]:
    """A process in a role, and what it said after ``ready``; killed on leaving."""
    with subprocess.Popen(
        [*(before or []), sys.executable, "-m", __spec__.name, role, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready, _, said = process.stdout.readline().strip().partition(" ")
            assert ready == "ready"
            yield process, said
        finally:
            process.kill()


def _kill(process: Process) -> None:
    process.kill()
    assert process.wait(DEADLINE_S) == -signal.SIGKILL


def _finish(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        os.sched_yield()


def _names() -> list[str]:
    """The addresses of all that is in ``/dev/shm``, ours or not."""
    return [f"shm:{path.name}" for path in SHM.iterdir()]


def _name_of(address: str) -> str:
    return address.removeprefix("shm:")


def _path_of(program: str) -> str:
    found = shutil.which(program)
    assert found is not None, f"{program} is not installed"
    return found


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
