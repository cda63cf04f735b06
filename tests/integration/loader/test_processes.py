"""A loader is made in one process and used in another, and processes that have one are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from entrepot.training import SoftDataLoader
from tests.integration.loader_samples import (
    WAYS,
    indices_of,
    left_of,
    loader_of,
    noted,
    products_of,
    samples_of,
    train,
)
from tests.integration.market_processes import Market, until
from tests.peer.process import CHECKOUT

LENGTH = 21


# --- another process --------------------------------------------------------------------


def _rank(rank: int, meeting: str, loader: SoftDataLoader, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        with loader:
            found = []
            for batch in loader:
                found += indices_of([batch])
                dist.barrier()  # who has a batch less than the other would wait here for ever
            answers.put((rank, len(loader), found))
    finally:
        dist.destroy_process_group()


def test_each_rank_of_a_process_group_has_its_own(market: Market, tmp_path: Path) -> None:
    """The loader is made before, once, and forked with the ranks."""
    market.supplier()
    options = train(length=LENGTH, batch_size=3, drop_last=True, shuffle=True)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    arguments = (str(tmp_path / "meeting"), loader_of(market, **options), answers)
    ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    (_, first, ours), (_, second, theirs) = sorted(answers.get(timeout=100) for _ in ranks)
    for process in ranks:
        process.join()
        assert process.exitcode == 0
        process.close()
    answers.close()
    answers.join_thread()
    assert first == second == 3
    assert len(set(ours) | set(theirs)) == len(ours) + len(theirs) == 18


@pytest.mark.parametrize("name", ["here", "fork"])
def test_a_forked_child_uses_the_loader_and_so_does_its_parent(market: Market, name: str) -> None:
    market.supplier()
    with loader_of(market, "a", batch_size=2, **WAYS[name]) as loader:
        batches = iter(loader)
        mine = samples_of(next(batches))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                theirs = [sample for _ in range(3) for sample in samples_of(next(iter(loader)))]
                loader.close()
                status = 0 if len(set(theirs)) == 6 else 2
            finally:
                os._exit(status)
        for _ in range(3):
            mine += samples_of(next(batches))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for _ in range(3):
            mine += samples_of(next(batches))
        assert len(set(mine)) == 14


# --- ends that nobody planned -----------------------------------------------------------


def _doomed(stats: dict[str, Any]) -> list[str]:
    names = [one["name"] for one in stats["clients"]["list"]]
    return [name for name in names if name.startswith("doomed")]


def _without_it(stats: dict[str, Any]) -> bool:
    return not _doomed(stats)


def _training(market: Market, folder: Path) -> int:
    """A child that trains with forked workers, in a process group of its own, until Ctrl-C."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    os.dup2(os.open(folder / "errors", os.O_WRONLY | os.O_CREAT), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    medium = partial(noted, folder)
    loader = loader_of(market, "a", name="doomed", medium=medium, **WAYS["fork"])
    try:
        for _ in loader:
            pass
    except KeyboardInterrupt:
        loader.close()
        os._exit(7)
    finally:
        os._exit(1)


def test_ctrl_c_ends_it_and_its_workers(market: Market, tmp_path: Path) -> None:
    """A terminal sends it to all of them."""
    market.supplier()
    pid = _training(market, tmp_path)
    market.until(lambda stats: len(_doomed(stats)) == 2)
    os.killpg(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert (tmp_path / "errors").read_text() == ""
    assert left_of(tmp_path) == []
    market.until(_without_it)


@pytest.mark.parametrize("clients", [1, 2])
def test_workers_of_one_that_is_killed_end_and_let_go(
    market: Market, tmp_path: Path, clients: int
) -> None:
    """Also those that had just begun."""
    market.supplier()
    pid = _training(market, tmp_path)
    market.until(lambda stats: len(_doomed(stats)) >= clients)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    market.until(_without_it)
    until(partial(left_of, tmp_path), lambda left: not left)


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from tests.integration.loader_samples import CONTRACT, WAYS, noted
from entrepot.training import SoftDataLoader

_, frontend, way, folder = sys.argv
options = WAYS[way] or {"framework": "numpy"}  # so that torch is not loaded here
medium = partial(noted, Path(folder))
loader = SoftDataLoader(frontend, CONTRACT, "a", name="doomed", medium=medium, **options)
next(iter(loader))
"""


@pytest.mark.parametrize("way", ["here", "fork"])
def test_a_script_that_ends_without_close_leaves_nothing(
    market: Market, way: str, tmp_path: Path
) -> None:
    market.supplier()
    run_script(SCRIPT, market.frontend, way, str(tmp_path))
    assert left_of(tmp_path) == []
    market.until(_without_it)


def run_script(script: str, *arguments: str) -> None:
    """Run it in an interpreter of its own."""
    subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / "src")},
        check=True,
        timeout=100,
    )


# --- without torch ----------------------------------------------------------------------

WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not installed", name=name)

sys.meta_path.insert(0, Blocker())
import entrepot.training
from entrepot.errors import MissingExtra
from tests.integration.loader_samples import CONTRACT, indices_of

options = {"products": "train/{index}", "length": 10, "batch_size": 4}
for wrong in ({}, {"framework": "numpy", "num_workers": 1}):
    try:
        entrepot.training.SoftDataLoader(sys.argv[1], CONTRACT, **options, **wrong)
    except MissingExtra as error:
        assert "entrepot[torch]" in str(error), error
    else:
        raise AssertionError("it needs torch")
options["framework"] = "numpy"
with entrepot.training.SoftDataLoader(sys.argv[1], CONTRACT, **options) as loader:
    assert indices_of(loader) == list(range(10))
"""


def test_arrays_need_no_torch(market: Market) -> None:
    market.supplier()
    run_script(WITHOUT, market.frontend)


def test_workers_send_arrays_too(market: Market) -> None:
    market.supplier()
    options = train(length=6, batch_size=4, framework="numpy")
    with loader_of(market, **options, **WAYS["fork"]) as loader:
        batches = list(loader)
    assert [product for batch in batches for product in products_of(batch)] == [
        f"train/{index}" for index in range(6)
    ]
    assert type(batches[0]["said"]).__name__ == "ndarray"
