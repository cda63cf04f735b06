"""kill -9 before, after and within every system call of a claim, a bind, a put, a gc, an opening.

Whatever the moment: nothing torn is served, nothing that was acknowledged is lost, and no number
is blocked for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from entrepot.errors import MissingBlob
from entrepot.store.folder import FolderStore
from entrepot.store.layout import blob_key, key_of
from entrepot.store.record import Fault, digest_of
from tests.unit.store.folder_faults import Killing, When, in_child

TORN_GRACE_S = 0.05
MOST_CALLS = 80


@pytest.fixture(params=[True, False], ids=["links", "no-links"])
def links(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=list(When), ids=lambda when: when.value)
def when(request: pytest.FixtureRequest) -> When:
    found: When = request.param
    return found


class Victims:
    """Children that are killed at the first, the second, ... call, until one gets through."""

    def __init__(self, path: Path, when: When, *, links: bool) -> None:
        self.calls = Killing(links=links)
        self.when = when
        self.store = FolderStore(path, calls=self.calls, torn_grace_s=TORN_GRACE_S)
        self.other = FolderStore(path, calls=Killing(links=links), torn_grace_s=TORN_GRACE_S)

    def each(
        self, work: Callable[[int], None], prepare: Callable[[int], None] | None = None
    ) -> Iterator[tuple[int, bool]]:
        """The number of the call, and whether the work was acknowledged."""
        for n in range(1, MOST_CALLS):
            if prepare is not None:
                prepare(n)

            def armed(n: int = n) -> None:
                self.calls.arm(n, self.when)
                work(n)

            acknowledged, killed = in_child(armed)
            yield n, acknowledged
            if not killed:
                assert acknowledged
                assert self.when is When.WITHIN or n > 5, "nothing was killed: are calls hooked?"
                return
        raise AssertionError(f"more than {MOST_CALLS} calls")


def in_the_end(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def leave_torn(store: FolderStore, name: str, data: bytes = b'{"name":"sp') -> None:
    """As a claim without links leaves it when it is killed, and long ago."""
    path = store.path / key_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1, 1))


def check_claimed(victims: Victims, name: str, nonce: str, acknowledged: bool) -> None:
    """After a claim of ``name`` was killed, or not."""
    other = victims.other
    found = other.resolve(name)
    if acknowledged:
        assert found is not None
    if found is not None:
        assert (found.name, found.meta, found.nonce) == (name, {"state": "running"}, nonce)
        assert not other.claim(name)
        assert other.claim(name, nonce=nonce), "who was killed, and knows its nonce, still has it"
    else:
        in_the_end(lambda: other.claim(name, meta={"state": "second"}))
        found = other.resolve(name)
        assert found is not None
        assert found.meta == {"state": "second"}
    assert not other.claim(name)


def test_a_claim(tmp_path: Path, links: bool, when: When) -> None:
    victims = Victims(tmp_path / "store", when, links=links)

    def claim(n: int) -> None:
        # Every third in a folder that is not there yet.
        assert victims.store.claim(
            f"spam/trial/{1000 * (n // 3) + n % 3}/0", meta={"state": "running"}, nonce=f"{n:032}"
        )

    for n, acknowledged in victims.each(claim):
        name = f"spam/trial/{1000 * (n // 3) + n % 3}/0"
        if links:
            assert victims.other.scan() == [] or victims.other.skipped.count(Fault.TORN) == 0
        check_claimed(victims, name, f"{n:032}", acknowledged)
    assert len({each.name for each in victims.other.scan()}) == n


def test_a_claim_of_what_a_crash_left_torn(tmp_path: Path, links: bool, when: When) -> None:
    victims = Victims(tmp_path / "store", when, links=links)

    def claim(n: int) -> None:
        assert victims.store.claim(f"spam/trial/{n}/0", meta={"state": "running"}, nonce=f"{n:032}")

    for n, acknowledged in victims.each(
        claim, lambda n: leave_torn(victims.other, f"spam/trial/{n}/0")
    ):
        check_claimed(victims, f"spam/trial/{n}/0", f"{n:032}", acknowledged)


def test_a_bind(tmp_path: Path, links: bool, when: When) -> None:
    victims = Victims(tmp_path / "store", when, links=links)
    store, other = victims.store, victims.other
    blob = other.put(b"curve")

    def bind(n: int) -> None:
        store.bind(f"spam/trial/{n}/0", blob, {"state": "done"})

    def claim(n: int) -> None:
        assert other.claim(f"spam/trial/{n}/0", meta={"state": "running"})

    for n, acknowledged in victims.each(bind, claim):
        found = other.resolve(f"spam/trial/{n}/0")
        assert found is not None
        assert found.meta["state"] in (("done",) if acknowledged else ("done", "running"))
        assert other.skipped.faults == {}
        other.bind(f"spam/trial/{n}/0", blob, {"state": "again"})
        found = other.resolve(f"spam/trial/{n}/0")
        assert found is not None
        assert found.meta["state"] == "again"


@pytest.mark.parametrize("there", ["absent", "present", "torn"])
def test_a_put(tmp_path: Path, when: When, there: str) -> None:
    victims = Victims(tmp_path / "store", when, links=True)
    store, other = victims.store, victims.other

    def data(n: int) -> bytes:
        return bytes([n]) * 40_000

    def prepare(n: int) -> None:
        if there != "absent":
            other.put(data(n))
        if there == "torn":
            path = other.path / blob_key(digest_of(data(n)))
            path.write_bytes(data(n)[:30_000])

    def put(n: int) -> None:
        store.put(data(n))

    for n, acknowledged in victims.each(put, prepare):
        digest = digest_of(data(n))
        if acknowledged or there == "present":
            assert other.get(digest) == data(n)
        elif there == "absent":
            try:
                assert other.get(digest) == data(n)
            except MissingBlob:
                pass
        assert other.put(data(n)) == digest
        assert other.get(digest) == data(n)


@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER], ids=lambda when: when.value)
def test_a_gc(tmp_path: Path, when: When) -> None:
    """What is needed, and what was just put, is there at every moment; the rest goes in the end."""
    victims = Victims(tmp_path / "store", when, links=True)
    store, other = victims.store, victims.other
    needed, orphan = other.put(b"needed"), other.put(b"orphan")
    other.bind("a", meta={"blob": needed})

    def make_old(_: int) -> None:
        for digest in (other.put(b"needed"), other.put(b"orphan")):
            os.utime(other.path / blob_key(digest), (1, 1))

    def collect(_: int) -> None:
        store.gc(100, dry_run=False)

    place = other.path / blob_key(orphan)
    taken = 0
    for _, acknowledged in victims.each(collect, make_old):
        assert other.get(needed) == b"needed"
        taken += not place.exists()
        assert not (acknowledged and place.exists())
        other.put(b"orphan")
        assert other.get(orphan) == b"orphan"
        assert place.exists()
    assert taken > 1


def test_an_opening(tmp_path: Path, links: bool, when: When) -> None:
    calls = Killing(links=links)
    for n in range(1, MOST_CALLS):
        path = tmp_path / f"store-{n}"

        def open_armed(n: int = n, path: Path = path) -> None:
            calls.arm(n, when)
            FolderStore(path, calls=calls)

        _, killed = in_child(open_armed)
        store = FolderStore(path, calls=Killing(links=links))
        assert store.claims == ("link" if links else "exclusive")
        assert store.claim("a")
        assert [each.name for each in store.scan()] == ["a"]
        if not killed:
            assert when is When.WITHIN or n > 10
            return
    raise AssertionError(f"more than {MOST_CALLS} calls")


def test_what_the_killed_left_is_swept_after_a_day(tmp_path: Path, when: When) -> None:
    victims = Victims(tmp_path / "store", when, links=True)
    for _ in victims.each(lambda n: victims.store.bind(f"a{n}")):
        pass
    left = list((tmp_path / "store" / "tmp").iterdir())
    assert left, "no killed bind left anything"
    FolderStore(tmp_path / "store")
    assert len(list((tmp_path / "store" / "tmp").iterdir())) == len(left)
    for path in left:
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    FolderStore(tmp_path / "store", read_only=True)
    assert len(list((tmp_path / "store" / "tmp").iterdir())) == len(left)
    FolderStore(tmp_path / "store")
    assert list((tmp_path / "store" / "tmp").iterdir()) == []
