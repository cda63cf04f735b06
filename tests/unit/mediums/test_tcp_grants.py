"""Who may write and read what, without any sockets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from entrepot.mediums.tcp_grants import Grant, Grants, Refusal
from entrepot.mediums.tcp_wire import FENCED, OUT_OF_RANGE, REST, TOO_LARGE

A, B, C = (bytes([digit]) * 16 for digit in range(3))


def granted() -> Grants[str]:
    """Slots of 100 bytes at 0 (for A) and 128 (for B), and an input of 10 at 256 (for C)."""
    grants: Grants[str] = Grants()
    grants.add(A, 0, 100, False)
    grants.add(B, 128, 100, False)
    grants.add(C, 256, 10, True)
    return grants


def refused(status: int) -> pytest.RaisesExc[Refusal]:
    return pytest.raises(Refusal, check=lambda error: error.status == status)


def write(grants: Grants[str], token: bytes, offset: int, lease: int, line: str) -> None:
    grant, _ = grants.begin_write(token, lease, offset, 100, 100, line)
    grants.end_write(grant, line, True)


def test_a_token_writes_its_own_slot_and_nothing_else() -> None:
    grants = granted()
    write(grants, A, 0, 7, "line")
    assert [grants.written(offset) for offset in (0, 128, 256)] == [7, 0, 0]
    for offset, limit in ((128, 100), (0, 101), (1, 100), (100, 1), (2**64 - 1, 1), (0, 2**64 - 2)):
        with refused(OUT_OF_RANGE):
            grants.begin_write(A, 7, offset, limit, 1, "line")
    assert grants.written(0) == 7


def test_a_part_of_a_slot_may_be_written() -> None:
    grants = granted()
    grant, _ = grants.begin_write(A, 7, 60, REST, 40, "line")
    grants.end_write(grant, "line", True)
    grant, _ = grants.begin_write(A, 7, 60, 40, 40, "line")
    grants.end_write(grant, "line", True)
    for limit in (REST, 40):
        with refused(TOO_LARGE):
            grants.begin_write(A, 7, 60, limit, 41, "line")
    with refused(OUT_OF_RANGE):
        grants.begin_write(A, 7, 101, REST, 0, "line")


def test_what_was_never_granted_is_refused() -> None:
    grants = granted()
    unknown = bytes([9]) * 16
    with refused(FENCED):
        grants.begin_write(unknown, 7, 0, 100, 1, "line")
    with refused(FENCED):
        grants.begin_read(unknown, 256, 1, "line")
    with refused(FENCED):
        grants.find(unknown)


def test_an_input_is_read_and_not_written_and_a_slot_written_and_not_read() -> None:
    grants = granted()
    grant = grants.begin_read(C, 256, 10, "line")
    grants.end_read(grant, "line")
    for offset, nbytes in ((255, 1), (256, 11), (0, 1), (266, 1), (2**64 - 1, 2**64 - 1)):
        with refused(OUT_OF_RANGE):
            grants.begin_read(C, offset, nbytes, "line")
    with refused(FENCED):
        grants.begin_write(C, 7, 256, 10, 1, "line")
    with refused(FENCED):
        grants.begin_read(A, 0, 1, "line")


@pytest.mark.parametrize("how", ["removed", "granted anew"])
def test_what_was_taken_back_is_refused(how: str) -> None:
    grants = granted()
    writing, _ = grants.begin_write(A, 7, 0, 100, 100, "writer")
    stopped = (
        grants.remove(0) if how == "removed" else grants.add(bytes(16)[:15] + b"x", 0, 100, False)
    )
    assert set(stopped) == {"writer"}
    with refused(FENCED):
        grants.end_write(writing, "writer", True)
    assert grants.written(0) == 0
    with refused(FENCED):
        grants.begin_write(A, 7, 0, 100, 1, "writer")
    write(grants, B, 128, 8, "other")
    assert grants.written(128) == 8


def test_readers_of_what_is_taken_back_are_stopped() -> None:
    grants = granted()
    grants.begin_read(C, 256, 10, "one")
    grants.begin_read(C, 256, 10, "two")
    assert set(grants.remove(256)) == {"one", "two"}
    assert not grants.remove(256)


def test_the_newest_lease_has_the_slot() -> None:
    grants = granted()
    first, _ = grants.begin_write(A, 1, 0, 100, 100, "zombie")
    second, stopped = grants.begin_write(A, 2, 0, 100, 100, "heir")
    assert set(stopped) == {"zombie"}
    with refused(FENCED):
        grants.end_write(first, "zombie", True)
    assert grants.written(0) == 0
    with refused(FENCED):
        grants.begin_write(A, 1, 0, 100, 100, "zombie")
    grants.end_write(second, "heir", True)
    assert grants.written(0) == 2
    with refused(FENCED):
        grants.begin_write(A, 1, 0, 100, 100, "zombie")
    assert grants.written(0) == 2


def test_a_lease_may_write_again_on_another_line() -> None:
    """Its connection broke, and it does not know what arrived."""
    grants = granted()
    broken, _ = grants.begin_write(A, 1, 0, 100, 100, "broken")
    _, stopped = grants.begin_write(A, 1, 0, 100, 100, "line")
    assert set(stopped) == {"broken"}
    with refused(FENCED):
        grants.end_write(broken, "broken", False)
    write(grants, A, 0, 1, "another")
    assert grants.written(0) == 1


def test_a_write_that_broke_off_is_none() -> None:
    grants = granted()
    write(grants, A, 0, 1, "line")
    grant, _ = grants.begin_write(A, 2, 0, 100, 100, "line")
    assert grants.written(0) == 0
    grants.end_write(grant, "line", False)
    assert grants.written(0) == 0


def test_what_was_written_is_known_until_the_slot_is_granted_anew() -> None:
    grants = granted()
    write(grants, A, 0, 7, "line")
    grants.remove(0)
    assert grants.written(0) == 7
    grants.add(C[:15] + b"x", 0, 100, False)
    assert grants.written(0) == 0


def test_a_checksum_is_that_of_the_last_write_alone() -> None:
    grants = granted()
    grant, _ = grants.begin_write(A, 7, 0, 100, 60, "line")
    first = grant.writes
    grants.end_write(grant, "line", True)
    assert grants.checksum(0, 60) is None
    grants.summed(grant, first, 60, 5)
    assert [grants.checksum(0, nbytes) for nbytes in (60, 61, 0)] == [5, None, None]
    grants.begin_write(A, 7, 0, 100, 60, "line")
    assert grants.checksum(0, 60) is None
    grants.summed(grant, first, 60, 5)  # which took so long
    assert grants.checksum(0, 60) is None
    grants.summed(grant, grant.writes, 60, 6)
    grants.remove(0)
    assert grants.checksum(0, 60) == 6  # for who serves it
    grants.summed(grant, grant.writes, 60, 7)
    assert grants.checksum(0, 60) == 6
    grants.add(A, 0, 100, False)
    assert grants.checksum(0, 60) is None
    grants.summed(grant, grant.writes, 60, 7)  # of what another token wrote
    assert grants.checksum(0, 60) is None


def test_memory_is_aimed_at_by_a_write_of_just_its_size() -> None:
    grants = granted()
    memory = memoryview(bytearray(60))
    slots = memoryview(bytearray(512))
    grants.aim(0, memory)
    for offset, nbytes, there in ((0, 60, True), (0, 61, False), (40, 60, False), (0, 60, True)):
        grant, _ = grants.begin_write(A, 7, offset, 100 - offset, nbytes, "line")
        assert (grant.target(slots, offset, nbytes) is memory) == there
        assert len(grant.target(slots, offset, nbytes)) == nbytes
        assert grants.landed(0) is None
        grants.end_write(grant, "line", True)
        assert grants.landed(0) is (memory if there else None)
    grants.remove(0)
    assert grants.landed(0) is memory  # for who serves it
    grants.let_go(0)
    assert grants.landed(0) is None
    grants.add(A, 0, 100, False)
    write(grants, A, 0, 7, "line")
    assert grants.landed(0) is None


def test_memory_that_was_not_written_whole_has_nothing() -> None:
    grants = granted()
    grants.aim(0, memoryview(bytearray(60)))
    grant, _ = grants.begin_write(A, 7, 0, 100, 60, "line")
    grants.end_write(grant, "line", False)
    assert grants.landed(0) is None


def test_an_input_that_was_granted_ahead_is_filled_once() -> None:
    grants = granted()
    grants.add(B, 128, 100, True, False)
    assert not grants.find(B).filled
    grants.fill(0)
    grants.fill(7)
    assert not grants.find(B).filled
    grants.fill(128)
    assert grants.find(B).filled
    assert grants.find(A).filled


def test_it_holds_no_more_than_a_grant_a_slot() -> None:
    grants = granted()
    for number in range(1000):
        grants.add(number.to_bytes(16, "big"), 0, 100, False)
    assert len(grants) == 3


class Rights(RuleBasedStateMachine):
    """Owners that grant and take back, and lines that begin, end and break off, in any order."""

    tokens: Bundle[tuple[bytes, int]] = Bundle("tokens")
    writes: Bundle[tuple[Grant[int], int, int, int]] = Bundle("writes")

    def __init__(self) -> None:
        super().__init__()
        self.grants: Grants[int] = Grants()
        self.made = 0
        self.good: dict[int, bytes] = {}
        self.writer: dict[int, int] = {}
        self.last: dict[int, tuple[int, bool]] = {}
        self.stopped: set[int] = set()
        self.newest: dict[int, int] = {}
        self.ended: dict[int, int] = {}

    def number(self) -> int:
        self.made += 1
        return self.made

    @rule(target=tokens, offset=st.sampled_from([0, 128]))
    def grant(self, offset: int) -> tuple[bytes, int]:
        token = self.number().to_bytes(16, "big")
        self.stopped |= set(self.grants.add(token, offset, 100, False))
        self.good[offset] = token
        self.last.pop(offset, None)
        self.newest.pop(offset, None)
        if offset in self.writer:
            assert self.writer.pop(offset) in self.stopped
        return token, offset

    @rule(offset=st.sampled_from([0, 128]))
    def revoke(self, offset: int) -> None:
        self.stopped |= set(self.grants.remove(offset))
        self.good.pop(offset, None)
        if offset in self.writer:
            assert self.writer.pop(offset) in self.stopped
            self.last.pop(offset)

    @rule(target=writes, token=tokens, lease=st.integers(1, 4))
    def begin(self, token: tuple[bytes, int], lease: int) -> tuple[Grant[int], int, int, int]:
        secret, offset = token
        line = self.number()
        try:
            grant, stopped = self.grants.begin_write(secret, lease, offset, 100, 100, line)
        except Refusal:
            return Grant(b"", 0, 0, False), offset, lease, 0
        assert self.good.get(offset) == secret
        self.stopped |= set(stopped)
        if offset in self.writer:
            assert self.writer[offset] in self.stopped
        self.writer[offset] = self.newest[offset] = line
        self.last[offset] = (lease, False)
        return grant, offset, lease, line

    @rule(write=writes, complete=st.booleans())
    def end(self, write: tuple[Grant[int], int, int, int], complete: bool) -> None:
        grant, offset, lease, line = write
        if not line or line in self.ended:
            return
        if self.writer.get(offset) == line:
            self.grants.end_write(grant, line, complete)
            del self.writer[offset]
            self.last[offset] = (lease, complete)
            self.ended[line] = grant.writes
        else:
            with refused(FENCED):
                self.grants.end_write(grant, line, complete)

    @rule(write=writes, nbytes=st.sampled_from([99, 100]))
    def sum(self, write: tuple[Grant[int], int, int, int], nbytes: int) -> None:
        grant, offset, _, line = write
        if line not in self.ended:
            return
        self.grants.summed(grant, self.ended[line], nbytes, line)
        if self.good.get(offset) == grant.token and self.newest.get(offset) == line:
            assert self.grants.checksum(offset, nbytes) == line

    @invariant()
    def a_checksum_is_of_what_was_written_last(self) -> None:
        for offset in (0, 128):
            for nbytes in (99, 100):
                checksum = self.grants.checksum(offset, nbytes)
                assert checksum in (None, self.newest.get(offset))

    @invariant()
    def what_is_written_is_the_last_write_and_complete(self) -> None:
        for offset in (0, 128):
            lease, complete = self.last.get(offset, (0, False))
            assert self.grants.written(offset) == (lease if complete else 0)


TestRights = Rights.TestCase
TestRights.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
