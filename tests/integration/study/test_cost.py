"""What looking at a study asks of a bucket: one scan, no blobs, and then what is new."""

from __future__ import annotations

from entrepot.store.bucket import BucketStore
from entrepot.study import Sampler, Space, finished, in_flight, report, take, trials
from tests.stores.proxy import FaultProxy

SPACE = Space().real("lr", 1e-4, 1.0, log=True)


def test_a_history_is_one_scan_and_no_blob(
    patient: BucketStore, proxy: FaultProxy, writer: BucketStore
) -> None:
    sampler = Sampler.sobol(0)

    def run(trial: int, reports: int, *, ends: bool = True) -> None:
        point = sampler.ask(SPACE, trial)
        assert point is not None
        assert take(writer, point, study="spam", trial=trial, me="m0", goal="min")
        if ends:
            numbers = [1.0 / (number + 1) for number in range(reports)]
            report(writer, point, numbers, study="spam", trial=trial, me="m0", state="done")

    for trial in range(5):
        run(trial, 1000)  # long curves, which are blobs
    run(5, 0, ends=False)
    with proxy.counted() as first:
        assert len(finished(patient, SPACE, study="spam")) == 5
    assert first["GET"] == 6, "a record each, and no blob"
    assert first["LIST"] <= 3
    began = len(proxy.seen)
    with proxy.counted() as again:
        assert len(finished(patient, SPACE, study="spam")) == 5
        assert len(trials(patient, study="spam")) == 6
    assert again["GET"] == 0
    run(6, 1)
    with proxy.counted() as more:
        assert len(finished(patient, SPACE, study="spam")) == 6
    assert more["GET"] == 1, "what is new, and nothing else"
    with proxy.counted() as flying:
        assert len(in_flight(patient, SPACE, study="spam")) == 1
    assert (flying["GET"], flying["PUT"]) == (0, 1), "a write, to read the store's clock"
    assert not any("/blobs/" in asked.target for asked in proxy.seen[began:])
