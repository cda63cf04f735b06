"""What the suite of mediums is made of: a medium, its supplier's side, and writers in processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from entrepot.mediums.base import Medium
from entrepot.mediums.registry import attach

PROCESS_TIMEOUT_S = 60.0
"""How long a child process of a suite may take."""

# A supplier in a process of its own: it says that it has attached, waits to be told to go on,
# writes one byte value over a whole slot again and again, and ends without closing anything.
_WRITER = """
import importlib, sys
address, offset, limit, value, times, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
from entrepot.mediums import attach
medium = attach(address)
print("attached", flush=True)
sys.stdin.readline()
data = bytes([int(value)]) * int(limit)
for _ in range(int(times)):
    medium.write(int(offset), data, int(limit))
print("written", flush=True)
"""


class MediumSuite:
    """What the tests of a medium use; see :class:`entrepot.testing.MediumContract`."""

    imports: str | None = None
    """A module to import in new processes, so that they know the scheme; none for ours."""

    bad_places: tuple[str, ...] = ("", "/", "..", "../x", "a/../../b", "\0", "x" * 5000, "\u20ac")
    """What may not come after ``scheme:``."""

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> Medium:
        """A new medium of the class under test, owned."""
        raise NotImplementedError("give the suite a medium to test")

    def address(self, medium: Medium, slot: int, *, readonly: bool = False) -> str:
        """The address of an order for ``slot`` of ``medium``, or of an input that is there.

        It takes the place of what was given out for that slot before.
        """
        return medium.grant(medium.offset(slot), medium.slot_nbytes, readonly=readonly)

    def attached(self, medium: Medium, slot: int = 0, *, readonly: bool = False) -> Medium:
        """The supplier's side of ``medium``, in this process."""
        return attach(self.address(medium, slot, readonly=readonly))

    # --- several processes --------------------------------------------------------------

    @contextmanager
    def _writers(self, medium: Medium, slots: int) -> Iterator[list[subprocess.Popen[str]]]:
        if not slots:
            yield []
            return
        with (
            self._writers(medium, slots - 1) as others,
            self._writer(medium, slots - 1, slots, times=50) as process,
        ):
            yield [*others, process]

    @contextmanager
    def _writer(
        self, medium: Medium, slot: int, value: int, times: int = 1
    ) -> Iterator[subprocess.Popen[str]]:
        """A supplier process that has attached and waits for a line before it writes."""
        arguments = [medium.offset(slot), medium.slot_nbytes, value, times]
        with subprocess.Popen(
            [
                sys.executable,
                "-c",
                _WRITER,
                self.address(medium, slot),
                *map(str, arguments),
                *([self.imports] if self.imports else []),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "attached\n"
                yield process
            finally:
                process.kill()
