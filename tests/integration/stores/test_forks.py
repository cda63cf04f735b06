"""A store in a forked child, and what its parent still has afterwards.

obstore shares its epoll instance with a child: one that uses what it inherited can make its
*parent* hang. So each test ends with requests of the parent.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from entrepot.store import Store
from entrepot.store.bucket import BucketStore
from tests.integration.stores.conftest import BUCKET
from tests.peer.process import CHECKOUT
from tests.stores.servers import SeaweedServer

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

CHILD_S = 30
"""How long a child may live."""

WORKERS = 4


def forked(act: Callable[[], object]) -> int:
    """The exit code of a child that does it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _live_for(CHILD_S)
            act()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _live_for(seconds: int) -> None:
    # A handler in Python, such as pytest-timeout's, is not run where native code waits.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def used(store: Store, times: int = 30) -> None:
    """Requests, one after the other and at once."""
    for _ in range(times):
        store.bind("used")
    assert all(store.resolve_many(["used"] * times))


def test_a_child_claims_and_so_does_its_parent(store: BucketStore) -> None:
    used(store)
    assert store.claim("parent")

    def child() -> None:
        assert not store.claim("parent")
        assert store.claim("child")
        assert store.get(store.put(b"child's")) == b"child's"
        used(store)

    assert forked(child) == 0
    assert not store.claim("child")
    assert store.claim("after")
    used(store)
    assert {record.name for record in store.scan()} == {"after", "child", "parent", "used"}


def test_a_child_of_a_child(store: BucketStore) -> None:
    used(store)

    def child() -> None:
        assert store.claim("child")

        def grandchild() -> None:
            assert not store.claim("child")
            assert store.claim("grandchild")

        assert forked(grandchild) == 0
        assert not store.claim("grandchild")
        used(store)

    assert forked(child) == 0
    used(store)


def test_a_child_that_ends_as_programs_do(seaweed: SeaweedServer, prefix: str) -> None:
    # The interpreter's end drops all that there is, and would drop what was inherited.
    program = f"""
import os, sys
from entrepot.store import Store
from tests.integration.stores.test_forks import used
store = Store.on_bucket({seaweed.endpoint!r}, {BUCKET!r}, {prefix!r})
used(store)
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        sys.exit(0 if store.claim("child") or True else 1)
    assert os.waitpid(pid, 0)[1] == 0
    used(store)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": f"{CHECKOUT / 'src'}{os.pathsep}{CHECKOUT}"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_child_that_drops_or_closes_what_it_inherited(store: BucketStore) -> None:
    with Store.open(store.url) as other:
        used(store)
        used(other)
        inherited = [store, other]

        def child() -> None:
            other.close()
            inherited.clear()
            store._requests._clients._open.clear()
            gc.collect()

        for _ in range(5):
            assert forked(child) == 0
            used(store)
            used(other)


def test_children_while_threads_of_the_parent_are_at_work(store: BucketStore) -> None:
    used(store)
    with ThreadPoolExecutor(WORKERS) as threads:
        at_work = [threads.submit(used, store, 50) for _ in range(WORKERS)]
        codes = [forked(lambda: used(store, 5)) for _ in range(3)]
        for each in at_work:
            each.result()
    assert codes == [0, 0, 0]
    used(store)


def _load(store: Store, indices: Any, out: Any) -> None:
    """What a worker of a data loader does: batches by index, until there is none."""
    _live_for(CHILD_S)
    while (index := indices.get()) is not None:
        digest = store.put(f"batch {index}".encode())
        out.put((index, store.claim(f"epoch/trial/{index}/0", digest), store.get(digest)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(store: BucketStore, method: str) -> None:
    used(store)
    context: Any = multiprocessing.get_context(method)
    indices, out = context.SimpleQueue(), context.SimpleQueue()
    workers = [context.Process(target=_load, args=(store, indices, out)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for index in [*range(100), *[None] * WORKERS]:
        indices.put(index)
    batches = sorted(out.get() for _ in range(100))
    assert batches == [(index, True, f"batch {index}".encode()) for index in range(100)]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
        worker.close()
    for queue in (indices, out):
        queue.close()
    used(store)
    assert len(store.scan("epoch/")) == 100
