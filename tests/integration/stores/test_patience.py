"""How long a store that hangs is waited for: as long as the settings say, and as the error says.

The server is a real one that is stopped by SIGSTOP, as a node that swaps or a disk that hangs looks
like: it takes connections, and answers nothing.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from entrepot.errors import ClaimUnsettled, StoreUnreachable
from entrepot.settings import Settings, SidecarSettings, StoreSettings
from entrepot.sidecar.app import watches_of
from entrepot.store.bucket import BucketStore
from entrepot.store.requests import Requests
from entrepot.study import Sampler, Space, Study, Trial
from tests.integration.stores.conftest import BUCKET, _needs
from tests.peer.waiting import until, until_stopped
from tests.stores.servers import SeaweedServer

TIMEOUT_S = 0.5
BUSY_S = 5.0
"""What other tests may add to it."""

SPACE = Space().real("lr", 1e-4, 1.0, log=True)


@pytest.fixture(scope="module")
def own() -> Iterator[SeaweedServer]:
    """One that nobody else is in the way of."""
    _needs("weed")
    with SeaweedServer() as server:
        server.make(BUCKET)
        yield server


@contextmanager
def hung(server: SeaweedServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        until_stopped(server.pid)
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def opened(
    server: SeaweedServer, prefix: str, attempts: int, timeout_s: float = TIMEOUT_S
) -> BucketStore:
    made = BucketStore.at(server.endpoint, BUCKET, prefix)
    # It was opened with time enough for a busy machine; what is looked at is what comes later.
    made._requests.close()
    made.settings = StoreSettings(
        timeout_s=timeout_s, attempts=attempts, backoff_s=0.01, max_backoff_s=0.05
    )
    made._requests = Requests(made.location, made.settings, os.environ)
    return made


ACTS: list[tuple[str, Callable[[BucketStore], object]]] = [
    ("read", lambda store: store.resolve("a")),
    ("listed", lambda store: store.scan()),
    ("written", lambda store: store.bind("a", meta={"is": "new"})),
]


@pytest.mark.parametrize("attempts", [1, 2, 6])
@pytest.mark.parametrize("act", [act for _, act in ACTS], ids=[name for name, _ in ACTS])
def test_it_is_waited_for_attempts_times_the_time_out(
    own: SeaweedServer, prefix: str, attempts: int, act: Callable[[BucketStore], object]
) -> None:
    """ATTEMPTS x TIMEOUT_S, and a pause between two; the error has both numbers as they were."""
    with opened(own, prefix, attempts) as store, hung(own):
        began = time.monotonic()
        with pytest.raises(StoreUnreachable, match="no answer in time") as told:
            act(store)
        took = time.monotonic() - began
    assert attempts * TIMEOUT_S <= took < attempts * (TIMEOUT_S + 0.1) + BUSY_S
    said = re.search(r"no answer in time, (?:(\d+) times in|after) (\d+\.\d) s", str(told.value))
    assert said is not None, str(told.value)
    assert int(said[1] or 1) == attempts
    assert float(said[2]) == pytest.approx(took, abs=BUSY_S)
    assert ("ENTREPOT_STORE__ATTEMPTS" in str(told.value)) is (attempts > 1)


def test_a_claim_that_is_not_settled_says_how_long_it_was_tried(
    own: SeaweedServer, prefix: str
) -> None:
    """Each try of a claim is read back, which may take as long again."""
    with opened(own, prefix, 2) as store, hung(own):
        began = time.monotonic()
        with pytest.raises(ClaimUnsettled) as told:
            store.claim("a")
        took = time.monotonic() - began
    assert 4 * TIMEOUT_S <= took < 4 * (TIMEOUT_S + 0.1) + BUSY_S
    said = re.search(r"tried 2 times in (\d+\.\d) s", str(told.value))
    assert said is not None, str(told.value)
    assert float(said[1]) == pytest.approx(took, abs=BUSY_S)


def test_a_stall_that_is_shorter_is_not_noticed(own: SeaweedServer, prefix: str) -> None:
    """Longer than any one try, and longer than two: whoever asked is answered."""
    found = []
    with opened(own, prefix, 100) as store:
        store.bind("a", meta={"is": "there"})
        asks = threading.Thread(target=lambda: found.append(store.resolve("a")))
        with hung(own):
            asks.start()
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 4 * TIMEOUT_S)
            assert asks.is_alive()
        asks.join(30)
    assert [record and dict(record.meta) for record in found] == [{"is": "there"}]


def test_a_look_of_the_sidecar_is_brief_however_patient_others_are(
    own: SeaweedServer, prefix: str
) -> None:
    """Nobody knows that the store is gone while it is waited for; and it looks again anyway."""
    with BucketStore.at(own.endpoint, BUCKET, prefix) as store:
        settings = Settings(
            sidecar=SidecarSettings(store=store.url),
            store=StoreSettings(timeout_s=2.0, attempts=100, backoff_s=0.01, max_backoff_s=0.05),
        )
    _, watch = watches_of(settings)
    assert watch is not None

    def seen() -> tuple[bool, str]:
        watch.look()
        return watch.seen.up, watch.seen.why

    assert seen() == (True, "")
    with hung(own):
        up, why = seen()
    assert not up
    assert "no answer in time, 2 times in" in why
    assert seen() == (True, "")
    watch.start()
    watch.stop()


def test_a_trial_whose_report_the_store_did_not_answer_is_handed_back(
    own: SeaweedServer, prefix: str
) -> None:
    """The store answers again when the error leaves the block: the next worker runs the trial."""
    with opened(own, prefix, 1, 2.0) as store:
        made = Study(store, "spam", SPACE, Sampler.sobol(0), me="m0")

        def work(body: Callable[[Trial], object]) -> None:
            for trial in made.work(trials=1):
                with trial:
                    body(trial)

        def stalled(trial: Trial) -> None:
            with hung(own):
                trial.report(0.5)

        with pytest.raises(StoreUnreachable):
            work(stalled)
        with BucketStore.at(own.endpoint, BUCKET, prefix) as patient:
            made = Study(patient, "spam", SPACE, Sampler.sobol(0), me="m1")
            assert [one.state for one in made.trials()] == ["released"]
            work(lambda trial: trial.report(0.25))
            assert [(one.state, one.attempt) for one in made.trials()] == [("done", 1)]
