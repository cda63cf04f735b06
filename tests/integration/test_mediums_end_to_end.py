"""Broker, client and suppliers over each medium: what is served, and what never is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from entrepot import Broker, Client, Supplier
from entrepot.mediums import FilesystemMedium, Medium, ShmMedium, TCPMedium
from entrepot.mediums.tcp_attachment import TCPAttachment
from entrepot.settings import BrokerSettings
from tests.integration.medium_parties import content
from tests.integration.needs import lacking, memory

LIMIT_S = 40.0

Make = Callable[[int, int], Medium]
Process = subprocess.Popen[str]

MEDIUMS = ["shm", "file", "network file", "tcp"]

SEVENS = bytes([7]) * (1 << 20)
"""Part of what a supplier of the value 7 makes."""


def until(condition: Callable[[], object]) -> None:
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.005)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    monkeypatch.setenv("ENTREPOT_SUPPLIER__FILE_ROOT", str(directory))
    return directory


def made(kind: str, root: Path) -> Make:
    """What makes a medium of that kind."""
    kinds: dict[str, Make] = {
        "shm": ShmMedium.create,
        "file": lambda slot_nbytes, slots: FilesystemMedium.create(slot_nbytes, slots, root=root),
        "network file": lambda slot_nbytes, slots: FilesystemMedium.create(
            slot_nbytes, slots, root=root, network=True
        ),
        "tcp": TCPMedium.create,
    }
    return kinds[kind]


@pytest.fixture(params=MEDIUMS)
def make(request: pytest.FixtureRequest, root: Path) -> Make:
    """Makes a medium of each kind."""
    return made(request.param, root)


@pytest.fixture
def hasty_broker(tmp_path: Path) -> Iterator[Broker]:
    """One that takes a supplier that is silent for two seconds for dead."""
    settings = BrokerSettings(beat_s=0.2, suspect_s=0.5, dead_s=2.0, reconnect_grace_s=0.1)
    with Broker(f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back", settings=settings) as running:
        yield running


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """One for suppliers that are silent while they make something large, or the machine is busy."""
    settings = BrokerSettings(beat_s=0.2, suspect_s=2.0, dead_s=5.0)
    with Broker(f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back", settings=settings) as running:
        yield running


def client_of(broker: Broker, medium: Medium) -> Client:
    return Client(broker.frontend, medium, timeout_s=LIMIT_S)


@contextmanager
def supplier(broker: Broker, name: str, value: int, notes: Path) -> Iterator[Process]:
    """A supplier process that has registered; killed on leaving, if it is still there."""
    with subprocess.Popen(
        [
            sys.executable,
            *("-m", "tests.integration.medium_parties"),
            *(broker.backend, name, str(notes), str(value)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def finish(process: Process) -> tuple[int, int]:
    """End a supplier in order: how many orders it made, and how many failed."""
    out, _ = process.communicate("\n", timeout=LIMIT_S)
    assert process.returncode == 0
    served, failed = out.split()
    return int(served), int(failed)


# --- what is served ---------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [64, 4096, 100_000, 1 << 20, (1 << 20) + 1, 16 << 20])
def test_products_of_every_size(make: Make, broker: Broker, tmp_path: Path, nbytes: int) -> None:
    """Given as bytes, filled in place, with an input; shorter than their slot and filling it."""
    with (
        supplier(broker, "maker", 7, tmp_path) as process,
        client_of(broker, make(nbytes, 4)) as client,
    ):
        for product_id in (f"{nbytes}:1", f"{nbytes}:2", f"{nbytes - 7}:1", f"{nbytes - 7}:2"):
            for given in (b"", b"input"):
                wanted = client.order(product_id, input=given or None)
                with wanted.result(LIMIT_S) as product:
                    seen = b"" if product_id.endswith("1") else given
                    assert product.data == content(product_id, 7, seen)
        assert client.figures()["corrupt"] == 0
        assert client.figures()["arenas"] == 1
        assert finish(process) == (8, 0)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nbytes", [128 << 20, 1 << 30], ids=["128 MiB", "1 GiB"])
@pytest.mark.parametrize("kind", ["shm", "file", "tcp"])
def test_large_products(root: Path, tmp_path: Path, kind: str, nbytes: int) -> None:
    """Given as bytes and filled in place, one after another in the only slot.

    A gibibyte is written only once, in the way in which the fewest copies of it are made.
    """
    memory(4 * nbytes, shared=2 * nbytes if kind == "shm" else 0)
    if kind == "file" and shutil.disk_usage(root).free < 2 * nbytes:
        lacking(f"there are no {2 * nbytes} bytes free in {root}")
    with (
        Broker(f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back") as broker,
        supplier(broker, "maker", 7, tmp_path) as process,
        client_of(broker, made(kind, root)(nbytes, 1)) as client,
    ):
        ways = [1, 2] if nbytes < 1 << 30 else [2] if kind == "shm" else [1]
        for product_id in [f"{nbytes}:{way}" for way in ways]:
            with client.order(product_id).result(5 * LIMIT_S) as product:
                assert product.nbytes == nbytes
                head = f"{product_id} ".encode()
                assert product.data[: len(head)] == head
                for start in range(len(head), nbytes, len(SEVENS)):
                    part = product.data[start : start + len(SEVENS)]
                    assert part == SEVENS[: len(part)], f"from {start} on it is something else"
        assert client.figures()["corrupt"] == 0
        assert client.figures()["arenas"] == 1
        assert finish(process) == (len(ways), 0)


def test_several_suppliers_serve_one_client(make: Make, broker: Broker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(supplier(broker, f"maker-{value}", value, tmp_path))
            for value in (1, 2, 3)
        ]
        client = stack.enter_context(client_of(broker, make(10_000, 12)))
        names = [f"10000:{kind}{number}" for number in range(60) for kind in (1, 2)]
        for name, product in zip(names, client.stream(names, timeout_s=LIMIT_S), strict=True):
            assert product.data == content(name, product.data[-1])
        assert client.figures()["corrupt"] == 0
        made = [finish(process) for process in processes]
        assert sum(served for served, _ in made) == len(names)
        assert all(served for served, _ in made)
        assert not any(failed for _, failed in made)


# --- what never is ----------------------------------------------------------------------


def test_a_supplier_that_was_thought_dead_and_writes_late(
    make: Make, hasty_broker: Broker, tmp_path: Path
) -> None:
    """It is stopped before it writes, another serves its order, and then it goes on."""
    nbytes = 200_000
    name = f"held:{nbytes}"
    with (
        supplier(hasty_broker, "zombie", 1, tmp_path) as zombie,
        client_of(hasty_broker, make(nbytes, 2)) as client,
    ):
        fences = client.medium.fences
        order = client.order(name)
        until((tmp_path / "zombie-holds").exists)
        zombie.send_signal(signal.SIGSTOP)
        with supplier(hasty_broker, "heir", 2, tmp_path):
            until((tmp_path / "heir-holds").exists)  # the order has moved
            figures = client.figures()
            assert figures["retired"] == (0 if fences else 1)
            (tmp_path / "go").touch()
            with order.result(LIMIT_S) as product:
                assert product.data == content(name, 2)
                zombie.send_signal(signal.SIGCONT)
                made = finish(zombie)  # it has written, or was refused
                assert made == ((0, 1) if fences else (1, 0))
                assert product.data == content(name, 2)
            for number in range(8):  # every slot that is used again
                with client.order(f"{nbytes}:1{number}").result(LIMIT_S) as product:
                    assert product.data == content(f"{nbytes}:1{number}", 2)
            assert client.figures()["corrupt"] == 0
            assert client.figures()["unexpected"] == 0


def test_a_supplier_that_stops_in_the_middle_of_writing(broker: Broker, tmp_path: Path) -> None:
    """Over TCP there is one slot, half of it the zombie's; the order takes it over at once."""
    nbytes = 128 << 20
    name = f"{nbytes}:1"
    with (
        supplier(broker, "zombie", 1, tmp_path) as zombie,
        client_of(broker, TCPMedium.create(nbytes, 1)) as client,
    ):
        window = client.medium.view(0, nbytes)
        (tmp_path / "zombie-breaks").touch()
        order = client.order(name)
        until((tmp_path / "zombie-holds").exists)
        until(lambda: window[100_000])
        zombie.send_signal(signal.SIGSTOP)
        assert not window[-1]
        with supplier(broker, "heir", 2, tmp_path):
            with order.result(LIMIT_S) as product:
                assert (product.data[100_000], product.data[-1]) == (2, 2)
                (tmp_path / "go").touch()
                zombie.send_signal(signal.SIGCONT)
                assert finish(zombie) == (0, 1)
                assert window == content(name, 2)
            figures = client.figures()
            assert (figures["corrupt"], figures["retired"], figures["arenas"]) == (0, 0, 1)


@pytest.mark.parametrize(("credit", "method"), [(1, "write_checksummed"), (4, "post")])
def test_what_another_lease_wrote_is_not_served(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, credit: int, method: str
) -> None:
    """The bytes are those that were announced, and still not what the order waits for."""
    real = getattr(TCPAttachment, method)
    leases: list[int] = []

    def write(*arguments: object, lease: int, **more: object) -> object:
        leases.append(lease)
        return real(*arguments, lease=lease ^ (len(leases) == 1), **more)

    monkeypatch.setattr(TCPAttachment, method, write)
    with (
        Supplier(broker.backend, {"x": lambda _: b"made"}, credit=credit) as maker,
        client_of(broker, TCPMedium.create(64, 2)) as client,
    ):
        maker.start()
        with client.order("x").result(LIMIT_S) as product:
            assert product.bytes() == b"made"
            assert product.lease == leases[1]
        assert client.figures()["corrupt"] == 1


@pytest.mark.parametrize("kind", ["cancelled", "discarded"])
def test_what_is_not_wanted_any_more_is_not_served(
    make: Make, broker: Broker, tmp_path: Path, kind: str
) -> None:
    nbytes = 1000
    with (
        supplier(broker, "maker", 1, tmp_path),
        client_of(broker, make(nbytes, 2)) as client,
    ):
        fences = client.medium.fences
        order = client.order(f"held:{nbytes}")
        until((tmp_path / "maker-holds").exists)
        if kind == "cancelled":
            assert client.cancel(order)
        else:
            assert client.discard() == 1
        assert client.figures()["quarantined"] == (0 if fences else 1)
        (tmp_path / "go").touch()
        for number in range(6):
            with client.order(f"{nbytes}:2{number}").result(LIMIT_S) as product:
                assert product.data == content(f"{nbytes}:2{number}", 1)
        until(lambda: client.figures()["free"] == 2)
        assert client.figures()["corrupt"] == 0


def test_a_broker_that_restarts(make: Make, tmp_path: Path) -> None:
    """Open orders are placed again; who fences needs no other memory for that."""
    nbytes = 1000
    ends = (f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back")
    with ExitStack() as stack:
        with Broker(*ends) as first:
            stack.enter_context(supplier(first, "maker", 1, tmp_path))
            client = stack.enter_context(client_of(first, make(nbytes, 4)))
            order = client.order(f"held:{nbytes}")
            until((tmp_path / "maker-holds").exists)
        with Broker(*ends):
            until(lambda: client.figures()["restarted"])
            (tmp_path / "go").touch()
            with order.result(LIMIT_S) as product:
                assert product.data == content(f"held:{nbytes}", 1)
            for number in range(8):
                with client.order(f"{nbytes}:1{number}").result(LIMIT_S) as product:
                    assert product.data == content(f"{nbytes}:1{number}", 1)
            figures = client.figures()
            assert figures["corrupt"] == 0
            assert figures["retired"] == (0 if client.medium.fences else 1)
