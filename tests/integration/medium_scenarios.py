"""Mediums where a disk is full, or a network is cut: each scenario alone in its namespaces.

unshare --net python -m tests.integration.medium_scenarios SCENARIO
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from entrepot.errors import Fenced, MediumError, MediumFull, MediumGone, MediumTimeout
from entrepot.mediums import FilesystemMedium, Medium, TCPMedium, attach
from entrepot.settings import SupplierSettings
from tests.integration.party_breakpoint import Breakpoint

DEADLINE_S = 30.0
OWNER, SUPPLIER = "10.77.0.1", "10.77.0.2"
PATIENCE_S = 1.0
"""How long a supplier waits for the other machine where that is to be cut off."""
NBYTES = 256 << 20

Process = subprocess.Popen[str]


# --- a small disk -----------------------------------------------------------------------


def a_full_disk(directory: str) -> None:
    """Of 4 MiB: what is promised is there, what is not is an error, and nothing is left."""
    root = Path(directory)
    for _ in range(3):
        try:
            FilesystemMedium.create(1 << 20, 8, root=root)
        except MediumFull as error:
            said = str(error)
        else:
            raise AssertionError("there was room for 8 MiB in 4")
        for part in (f"{8 << 20} bytes", f"of {4 << 20} bytes are free", str(root)):
            assert part in said, said
        assert not list(root.iterdir())
    with FilesystemMedium.create(1 << 20, 3, root=root) as medium:
        (root / "ballast").write_bytes(bytes((1 << 20) - 8192))
        supplier = FilesystemMedium.attach(medium.address, root=root)
        for slot in range(3):
            supplier.write(medium.offset(slot), bytes([slot + 1]) * (1 << 20), 1 << 20)
            assert medium.read(medium.offset(slot), 1 << 20) == bytes([slot + 1]) * (1 << 20)
        try:
            medium.renew()
        except MediumFull:
            pass
        else:
            raise AssertionError("there was room for another")
        supplier.close()
    assert [path.name for path in root.iterdir()] == ["ballast"]


# --- two machines, and the way between them ---------------------------------------------


class Held(threading.Event):
    """Is set by the next line, which it asks for.

    :ivar until: when that came.
    """

    until = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        print("held 0", flush=True)
        sys.stdin.readline()
        self.until = time.monotonic()
        return True


def supply(patience_s: str) -> None:
    """The other machine's supplier: does what each line says, and says how it went."""
    medium: Medium | None = None
    held = Held()
    breakpoint = Breakpoint(held)
    print("there", flush=True)
    while line := sys.stdin.readline():
        what, _, place = line.strip().partition(" ")
        began = time.monotonic()
        try:
            if what == "attach":
                medium = _attached(place, float(patience_s))
            assert medium is not None
            if what == "write":
                medium.at(place).write(0, b"z" * 64, 64, lease=1)
            elif what == "fill":
                medium.at(place).write(0, b"z" * NBYTES, NBYTES, lease=1)
            elif what == "fill-half":
                breakpoint.arm("within")
                medium.at(place).write_checksummed(0, b"z" * NBYTES, NBYTES, lease=1)
            said = "well"
        except MediumError as error:
            said = type(error).__name__
        print(said, f"{time.monotonic() - max(began, held.until):.1f}", flush=True)


def _attached(place: str, patience_s: float) -> Medium:
    """On a busy machine the way between the two may need longer than a supplier's patience."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return attach(place, settings=SupplierSettings(tcp_timeout_s=patience_s))
        except MediumError:
            if time.monotonic() > deadline:
                raise


class Machines:
    """This process is the owner's machine; the supplier's is another network namespace."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[str, float]:
        assert self.process.stdout is not None
        said, took_s = self.process.stdout.readline().split()
        return said, float(took_s)

    def ask(self, line: str) -> tuple[str, float]:
        self.tell(line)
        return self.answer()

    def cut(self) -> None:
        """From now on no packet arrives on either side, and nobody is told."""
        for pid, other in ((os.getpid(), SUPPLIER), (self.process.pid, OWNER)):
            ip(pid, f"neigh replace {other} lladdr 02:00:00:00:00:99 dev way nud permanent")

    def mend(self) -> None:
        for pid, other in ((os.getpid(), SUPPLIER), (self.process.pid, OWNER)):
            ip(pid, f"neigh del {other} dev way")


def ip(pid: int, arguments: str) -> None:
    """Run ip(8) in the network namespace of a process."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *arguments.split()]
    subprocess.run(command, check=True)


@contextmanager
def machines(patience_s: float = PATIENCE_S) -> Iterator[Machines]:
    command = [sys.executable, "-W", "error", "-m", __spec__.name, "supply", f"{patience_s}"]
    with subprocess.Popen(
        ["unshare", "--net", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            me = os.getpid()
            ip(me, "link set lo up")
            ip(me, "link add way type veth peer name yaw")
            ip(me, f"link set yaw netns {process.pid} name way")
            for pid, address in ((me, OWNER), (process.pid, SUPPLIER)):
                ip(pid, f"addr add {address}/24 dev way")
                ip(pid, "link set way up")
            yield Machines(process)
        finally:
            process.kill()


def owner(**options: float) -> TCPMedium:
    return TCPMedium.create(NBYTES, 1, host="0.0.0.0", advertise=OWNER, **options)  # type: ignore[arg-type]


def lines_of(medium: TCPMedium) -> int:
    return len(medium._owner_end._lines)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.005)


def a_way_between_machines() -> None:
    with machines(DEADLINE_S) as other, owner() as medium:
        assert medium.address.startswith(f"tcp:{OWNER}:")
        order = medium.grant(0, NBYTES)
        assert other.ask(f"attach {order}")[0] == "well"
        assert other.ask(f"fill {order}")[0] == "well"
        assert medium.written(0) == 1
        assert medium.view(0, NBYTES)[-1] == ord("z")


def a_cut_while_nothing_is_sent() -> None:
    """The supplier's next write ends in its time, and the owner forgets the connection."""
    with machines() as other, owner(timeout_s=1.0, idle_s=600.0) as medium:
        order = medium.grant(0, 64)
        assert other.ask(f"attach {order}")[0] == "well"
        until(lambda: lines_of(medium) == 1)
        other.cut()
        said, took_s = other.ask(f"write {order}")
        assert said == MediumTimeout.__name__, said
        assert took_s < 5.0, took_s
        until(lambda: lines_of(medium) == 0)
        said, took_s = other.ask(f"write {order}")
        assert said == MediumTimeout.__name__, said
        assert took_s < 5.0, took_s
        other.mend()
        until(lambda: other.ask(f"write {order}")[0] == "well")
        assert medium.read(0, 64) == b"z" * 64


def a_cut_in_the_middle_of_a_product() -> None:
    """The order moves on at once; what comes after the mend is refused."""
    with machines() as other, owner(timeout_s=60.0) as medium:
        order = medium.grant(0, NBYTES)
        assert other.ask(f"attach {order}")[0] == "well"
        window = medium.view(0, NBYTES)
        assert other.ask(f"fill-half {order}")[0] == "held"
        until(lambda: window[0])
        other.cut()
        assert not window[-1]
        other.tell("go on")
        moved = medium.grant(0, NBYTES)
        with attach(moved.replace(OWNER, "127.0.0.1")) as heir:
            heir.write(0, b"h" * NBYTES, NBYTES, lease=2)
        said, took_s = other.answer()
        assert said == MediumTimeout.__name__, said
        assert took_s < 10.0, took_s
        other.mend()
        refused: list[str] = []

        def reached() -> bool:
            refused.append(other.ask(f"fill {order}")[0])
            return refused[-1] != MediumTimeout.__name__  # the way there may need longer

        until(reached)
        assert refused[-1] in (Fenced.__name__, MediumGone.__name__)
        assert medium.written(0) == 2
        assert window == b"h" * NBYTES


def a_cut_while_the_owner_waits() -> None:
    """Half a product arrived, and its supplier's machine went: the owner waits as long as said."""
    with machines() as other, owner(timeout_s=1.0) as medium:
        order = medium.grant(0, NBYTES)
        assert other.ask(f"attach {order}")[0] == "well"
        window = medium.view(0, NBYTES)
        assert other.ask(f"fill-half {order}")[0] == "held"
        until(lambda: window[0])
        other.cut()
        other.process.kill()
        until(lambda: lines_of(medium) == 0)
        assert medium.written(0) == 0
        with attach(order.replace(OWNER, "127.0.0.1")) as heir:
            heir.write(0, b"h" * 64, 64, lease=2)
        assert medium.written(0) == 2


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
