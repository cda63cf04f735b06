"""A pytest plugin that fails a test which leaves something behind.

What is watched: Python threads, open descriptors, child processes, and shared-memory segments
of ours. A test is compared with itself: what is there after its function-scoped fixtures were
torn down must have been there before they were set up. What a fixture of a wider scope opens
is that fixture's until it is torn down, and then it has to be gone as well.

Ending takes a moment, so a difference is looked at again, after one garbage collection, until
it is gone or ``leaks_settle_s`` has passed. A test that fails for another reason is not
examined: its traceback keeps its locals alive, and the first failure is the one to read.

A test can only opt out as a whole, and has to say why: ``@pytest.mark.leaks_ok("reason")``.
Native threads, such as torch's pools and ZeroMQ's, are not Python's and are not watched.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psutil
import pytest

SEGMENTS = Path("/dev/shm")
SEGMENT_PREFIX = "entrepot-"
PROC = Path("/proc")

POLL_S = 0.01

# A ZeroMQ context with one I/O thread: a mailbox each for itself, the I/O thread and the
# reaper, and a poller each for the last two. Any socket has one more mailbox.
CONTEXT_DESCRIPTORS = {"anon_inode:[eventfd]": 3, "anon_inode:[eventpoll]": 2}
# obstore's runtime, once it has made a request. Its connections are not its own: they are closed
# with the store that they belong to.
RUNTIME_DESCRIPTORS = {"anon_inode:[eventfd]": 1, "anon_inode:[eventpoll]": 2}
ZERO_COPY_DESCRIPTORS = {"anon_inode:[eventfd]": 5, "anon_inode:[eventpoll]": 2}


class Descriptor(NamedTuple):
    """An open descriptor; two of one number are the same while the target is."""

    number: int
    target: str


class Segment(NamedTuple):
    """A file of ours in shared memory."""

    name: str


Thing = threading.Thread | Descriptor | Segment | psutil.Process


# --- what there is ----------------------------------------------------------------------


def held() -> set[Thing]:
    """All that this process holds now, less what belongs to the interpreter itself."""
    return {*_threads(), *_descriptors(), *_children(), *_segments()}


def _threads() -> Iterable[threading.Thread]:
    for thread in threading.enumerate():
        # A native thread that once called into Python looks like this for ever.
        if not isinstance(thread, threading._DummyThread):
            yield thread


def _descriptors() -> Iterable[Descriptor]:
    helpers = _multiprocessing_descriptors()
    for link in _listing(PROC / "self/fd"):
        if int(link.name) in helpers:
            continue
        try:
            yield Descriptor(int(link.name), str(link.readlink()))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue


def _children() -> Iterable[psutil.Process]:
    helpers = _multiprocessing_pids()
    for pid in _descendants():
        if pid not in helpers:
            try:
                yield psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue


def _descendants() -> list[int]:
    """Process ids of children, of their children, and so on."""
    if not (PROC / "self/task" / str(os.getpid()) / "children").exists():
        return [child.pid for child in psutil.Process().children(recursive=True)]
    found: list[int] = []
    parents = ["self"]
    while parents:
        # Any of them may end between two looks, so nothing is walked by a pattern: that raises.
        for thread in _listing(PROC / parents.pop() / "task"):
            try:
                pids = (thread / "children").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += map(int, pids)
            parents += pids
    return found


def _segments() -> Iterable[Segment]:
    for path in _listing(SEGMENTS):
        if path.name.startswith(SEGMENT_PREFIX):
            yield Segment(path.name)


def _listing(directory: Path) -> list[Path]:
    """What is in a directory that only Linux has, or that went with its process."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _multiprocessing_helper(module: str, attribute: str) -> object:
    return getattr(sys.modules.get(f"multiprocessing.{module}"), attribute, None)


def _multiprocessing_pids() -> set[object]:
    """The standard library's resource tracker and fork server: one a process, until it ends."""
    tracker = _multiprocessing_helper("resource_tracker", "_resource_tracker")
    server = _multiprocessing_helper("forkserver", "_forkserver")
    return {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}


def _multiprocessing_descriptors() -> set[object]:
    tracker = _multiprocessing_helper("resource_tracker", "_resource_tracker")
    server = _multiprocessing_helper("forkserver", "_forkserver")
    return {getattr(tracker, "_fd", None), getattr(server, "_forkserver_alive_fd", None)}


def _held_by_strangers(segments: Iterable[Segment]) -> set[Segment]:
    """Those of the segments that a process outside our own tree has locked as their owner.

    Several test runs may share one machine, and so one ``/dev/shm``.
    """
    inodes = {}
    for segment in segments:
        try:
            inodes[str((SEGMENTS / segment.name).stat().st_ino)] = segment
        except FileNotFoundError:
            continue
    ours = {os.getpid(), *_descendants()}
    found = set()
    try:
        locks = (PROC / "locks").read_text().splitlines()
    except FileNotFoundError:
        return set()
    for line in locks:
        # 1: FLOCK  ADVISORY  WRITE 4242 00:1a:77 0 EOF
        words = line.split()
        if "FLOCK" not in words or "->" in words:
            continue
        pid, inode = int(words[4]), words[5].rpartition(":")[2]
        if inode in inodes and pid not in ours:
            found.add(inodes[inode])
    return found


# --- how it is said ---------------------------------------------------------------------


def describe(thing: Thing) -> str:
    """One line that finds the thing again."""
    match thing:
        case Descriptor(number, target):
            return f"descriptor {number} -> {target}"
        case Segment(name):
            return f"shared memory {SEGMENTS / name}"
        case threading.Thread():
            kind = "daemon thread" if thing.daemon else "thread"
            runs = getattr(thing, "_target", None) or type(thing).run
            name = getattr(runs, "__qualname__", repr(runs))
            return f"{kind} {thing.name!r}, which runs {runs.__module__}.{name}"
        case _:
            return f"process {thing.pid}: {_command_line(thing)}"


def _command_line(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"{process.name()} (it ended, and nobody waited for it)"
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return "(ended just now)"


# --- what libraries keep ----------------------------------------------------------------


class Singletons:
    """What libraries make once a process and keep: pyzmq's context and its zero-copy thread,
    obstore's runtime.

    They start when they are first used, in whatever test that may be. Nothing tells which
    descriptors are theirs, but how many of which kind they have is known, and they are given
    so many. One that is closed was not theirs, and another is given in its place.
    """

    def __init__(self) -> None:
        self._given: WeakKeyDictionary[object, set[Descriptor]] = WeakKeyDictionary()

    def among(self, now: set[Thing], known: set[Thing]) -> set[Thing]:
        """Those that are taken to be the singletons' own, of what there is now and nobody has."""
        own: set[Thing] = set()
        context = getattr(getattr(sys.modules.get("zmq"), "Context", None), "_instance", None)
        if context is not None and not context.closed:
            own |= self._give(context, CONTEXT_DESCRIPTORS, now, known)
        garbage = sys.modules.get("zmq.utils.garbage")
        thread = getattr(getattr(garbage, "gc", None), "thread", None)
        if thread is not None and thread.is_alive():
            own |= self._give(thread, ZERO_COPY_DESCRIPTORS, now, known | own)
            own |= {thread} & now
        bucket_library = sys.modules.get("obstore")
        if bucket_library is not None:
            own |= self._give(bucket_library, RUNTIME_DESCRIPTORS, now, known | own)
        return own

    def _give(
        self, owner: object, kinds: dict[str, int], now: set[Thing], known: set[Thing]
    ) -> set[Descriptor]:
        given = self._given.setdefault(owner, set())
        given &= now
        others = {one for whose, each in self._given.items() if whose is not owner for one in each}
        left = Counter(kinds)
        left.subtract(each.target for each in given)
        free = (each for each in now - known - given - others if isinstance(each, Descriptor))
        for descriptor in sorted(free):
            if left[descriptor.target] > 0:
                left[descriptor.target] -= 1
                given.add(descriptor)
        return given


# --- the hooks --------------------------------------------------------------------------


class LeakWatch:
    """The state of the watch over one test after the other."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._singletons = Singletons()
        self._before: set[Thing] = set()
        self._opened_by: dict[pytest.FixtureDef[Any], set[Thing]] = {}
        self._owed: dict[Thing, str] = {}
        self._failed = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._failed = False
        self._owed.clear()
        self._before = held()
        return (yield from self._noting_failure())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        return (yield from self._noting_failure())

    def _noting_failure(self) -> Generator[None, object, object]:
        try:
            return (yield)
        except BaseException as error:
            self._failed = not isinstance(error, pytest.skip.Exception)
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = held()
        try:
            return (yield)
        finally:
            # The wider fixtures that it asked for on the way have been written down already.
            opened = self._opened_by[fixturedef] = self._new_since(before)
            # A number that was free before is a new descriptor, not one that is still owed.
            for thing in opened:
                self._owed.pop(thing, None)

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        for thing in self._opened_by.pop(fixturedef, ()):
            whose = f"{fixturedef.scope}-scoped fixture {fixturedef.argname!r}"
            self._owed[thing] = f" (opened by the {whose})"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        result = yield  # an error in the teardown is the one to report
        if self._failed or item.get_closest_marker("leaks_ok") is not None:
            return result
        leaked = self._settled()
        if not leaked:
            return result
        lines = sorted(describe(thing) + self._owed.get(thing, "") for thing in leaked)
        for thing in leaked:
            if isinstance(thing, psutil.Process):
                _end(thing)  # it would outlive the run, and hold its output open
        pytest.fail(
            f"{item.nodeid} left behind, {self._settle_s:g} s after its end:\n  "
            + "\n  ".join(lines)
            + "\nclose it in the test, or in the fixture that opened it",
            pytrace=False,
        )

    def _settled(self) -> set[Thing]:
        """What is left once things had their time to end."""
        leaked = self._leaked()
        if not leaked:
            return leaked
        gc.collect()
        deadline = time.monotonic() + self._settle_s
        while (leaked := self._leaked()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return leaked

    def _leaked(self) -> set[Thing]:
        now = held()
        owed = now & self._owed.keys()
        # What a wider fixture was thought to have opened may turn out to be a library's.
        new = self._new_since(self._before - owed, now)
        return new | (owed - self._singletons.among(now, self._before - owed))

    def _new_since(self, before: set[Thing], now: set[Thing] | None = None) -> set[Thing]:
        """What is there now, was not before, and belongs to nobody whom we know."""
        now = held() if now is None else now
        known = before.union(*self._opened_by.values())
        new = now - known
        if not new:
            return new
        new -= self._singletons.among(now, known)
        new -= {
            thing for thing in new if isinstance(thing, psutil.Process) and _is_below(thing, known)
        }
        new -= _held_by_strangers(thing for thing in new if isinstance(thing, Segment))
        return new


def _is_below(process: psutil.Process, known: set[Thing]) -> bool:
    """Whether a process that is known started this one, or started what started it."""
    try:
        return any(parent in known for parent in process.parents())
    except psutil.NoSuchProcess:
        return True


def _end(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(timeout=5)
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        return


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("leaks_ok"):
            if not [reason for reason in mark.args if isinstance(reason, str) and reason.strip()]:
                raise pytest.UsageError(
                    f'{item.nodeid}: say why it may leak, as in @pytest.mark.leaks_ok("reason")'
                )


def pytest_collection_finish() -> None:
    """What was imported is there to stay, and need not be looked at in each collection. There is a
    lot of it."""
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen.append(True)


_frozen: list[bool] = []
"""Whether that was done: pytester runs pytest in the same process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "leaks_settle_s",
        "seconds that threads, descriptors, processes and segments have to go after a test",
        default="2",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "leaks_ok(reason): this test may leave threads, descriptors or processes behind"
    )
    config.pluginmanager.register(LeakWatch(float(config.getini("leaks_settle_s"))), "leak-watch")
