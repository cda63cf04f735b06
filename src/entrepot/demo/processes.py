"""The demonstration's parts as operating-system processes: started, awaited, ended for certain."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from entrepot.cli.signals import unbroken
from entrepot.errors import DemoFailed, EntrepotError

START_S = 30.0
"""Time for a part to say that it is ready."""

END_S = 5.0
"""Time for all parts to leave after SIGTERM, before they are killed."""

DRAIN_S = 30.0
"""Time for suppliers to leave when they are asked: an interpreter with torch in it may take five
seconds to end on a machine that is busy, and there is nothing wrong with that."""

LOOK_S = 0.02

CHILD = "entrepot.cli.child"
"""A module that runs a command for as long as its parent lives."""


class Part:
    """One ``entrepot`` command in a process of its own, which tells its events as JSON.

    :param module: what is run, with our process id before ``arguments``; it ends when we do.
    """

    def __init__(
        self,
        title: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        module: str = CHILD,
    ) -> None:
        self.title = title
        # Unlinked from the start: there is no file to leave behind.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # see release()
        # A session of its own: Ctrl-C on the terminal reaches the demonstration alone, which
        # then ends its parts in their order.
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._unread = b""
        self.killed = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, event: str, timeout_s: float = START_S) -> dict[str, Any]:
        """The next object on the part's standard output that is this event.

        Raises:
            DemoFailed: the part ended or said nothing in that time; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            said = self._next(repr(event), timeout_s, deadline)
            if said.get("event") == event:
                return said

    def next_event(self, timeout_s: float) -> dict[str, Any]:
        """The next object on the part's standard output, whatever its event; raises likewise."""
        return self._next("anything", timeout_s, time.monotonic() + timeout_s)

    def _next(self, what: str, timeout_s: float, deadline: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        while True:
            line, found, rest = self._unread.partition(b"\n")
            if found:
                self._unread = rest
                said: dict[str, Any] = json.loads(line)
                return said
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, left_s))
            if not ready:
                raise DemoFailed(
                    f"{self.title} did not say {what} within {timeout_s:g} s; {self.log_end()}"
                )
            chunk = os.read(self.process.stdout.fileno(), 1 << 16)
            if not chunk:
                code = self.process.wait()
                raise DemoFailed(f"{self.title} ended with {code}; {self.log_end()}")
            self._unread += chunk

    def ended(self, timeout_s: float) -> bool:
        """Whether it has ended by itself, with 0, in that time."""
        try:
            return self.process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False

    def log_end(self, nbytes: int = 600) -> str:
        """The last of what the part wrote to standard error."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - nbytes))
        said = " ".join(self._errors.read().decode(errors="replace").split())
        return f"its log ends: {said}" if said else "its log is empty"

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process without a chance to say anything (SIGKILL), and collect it."""
        self.killed = True
        self.process.kill()
        self.process.wait()

    def release(self) -> None:
        """Close what belongs to us of a process that has ended."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


class Parts:
    """All parts of a demonstration. Leaving the block ends every one of them.

    :param end_s: time for them to leave after SIGTERM; by default ``END_S``.
    """

    def __init__(self, end_s: float | None = None) -> None:
        self._all: list[Part] = []
        self._end_s = end_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(
        self,
        title: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        module: str = CHILD,
    ) -> Part:
        """Start ``entrepot ARGUMENTS``, or another module than that command's."""
        with unbroken():  # a process that nobody knows of would be left
            part = Part(title, arguments, environment or {}, module)
            self._all.append(part)
        return part

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What goes wrong in the block is put down to the parts that died, if any did."""
        try:
            yield
        except DemoFailed:
            raise
        except EntrepotError as fault:
            dead = [part for part in self._all if not part.killed and part.process.poll()]
            if not dead:
                raise
            said = "; ".join(
                f"{part.title} ended with {part.process.returncode}, {part.log_end()}"
                for part in dead
            )
            raise DemoFailed(f"{said} ({fault})") from fault

    def end(self, parts: Sequence[Part]) -> list[str]:
        """Ask ``parts`` to finish and wait; what did not leave with 0 in time is named."""
        for part in parts:
            if part.running:
                part.process.terminate()
        end_s = END_S if self._end_s is None else self._end_s
        deadline = time.monotonic() + end_s
        faults = []
        for part in parts:
            try:
                code = part.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.kill()
                faults.append(f"{part.title} had not left {end_s:g} s after SIGTERM")
            else:
                if code != 0:
                    faults.append(f"{part.title} left with {code}; {part.log_end()}")
        return faults

    def drain(self, ask: Callable[[], int], serving: Sequence[Part], broker: Part) -> None:
        """Have the suppliers leave, then stop the broker.

        :param ask: asks all suppliers to leave; returns how many those are.
        :raises DemoFailed: one does not, or not with 0.
        """
        told = ask()
        if told != len(serving):
            raise DemoFailed(f"{told} suppliers were asked to leave, not {len(serving)}")
        deadline = time.monotonic() + DRAIN_S
        while any(part.running for part in serving) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        faults = [f"{part.title} did not leave when asked" for part in serving if part.running]
        faults += self.end([*serving, broker])
        if faults:
            raise DemoFailed("; ".join(faults))

    def close(self) -> None:
        """End whatever still runs. May be called again."""
        left = [part for part in self._all if part.running]
        for part in left:
            part.process.send_signal(signal.SIGCONT)  # a frozen one could not hear SIGTERM
        self.end(left)
        for part in self._all:
            part.release()
        self._all.clear()
