"""What waits for a peer: in order, once each, and never more than the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrepot.market.outbox import Full, Pending, Pushes

MANY = 10**6


def frames(i: int, nbytes: int = 8) -> tuple[bytes, bytes]:
    return (b"FULFILLED", str(i).encode().rjust(nbytes - 9, b"0"))


# --- Pending ----------------------------------------------------------------------------


def test_pending_messages_leave_in_the_order_in_which_they_came() -> None:
    pending = Pending(10, MANY)
    for i in range(3):
        pending.add(frames(i))
    left = []
    while pending:
        left.append(pending.first())
        assert pending.first() == left[-1]
        pending.sent()
    assert left == [frames(0), frames(1), frames(2)]
    assert pending.nbytes == 0


def test_pending_messages_are_limited_in_number() -> None:
    """As many as the limit are taken, and one more is Full, which says how many wait."""
    pending = Pending(2, MANY)
    pending.add(frames(0))
    pending.add(frames(1))
    with pytest.raises(Full, match="3 messages"):
        pending.add(frames(2))


def test_pending_messages_are_limited_in_bytes() -> None:
    """All frames count, and what was sent counts no more."""
    pending = Pending(10, 60)
    pending.add(frames(0, nbytes=30))
    pending.add(frames(1, nbytes=30))
    pending.sent()
    pending.add(frames(2, nbytes=30))
    assert pending.nbytes == 60
    with pytest.raises(Full, match="of 90 bytes"):
        pending.add(frames(3, nbytes=30))


def test_one_message_larger_than_the_limit_is_full() -> None:
    with pytest.raises(Full):
        Pending(10, 20).add(frames(0, nbytes=21))


# --- Pushes -----------------------------------------------------------------------------


def push(pushes: Pushes, *ends: str, nbytes: int = 20) -> int:
    number = pushes.number()
    pushes.keep(number, frames(number, nbytes), ends)
    return number


def test_pushes_are_numbered_from_one() -> None:
    pushes = Pushes(10, MANY)
    assert pushes.last == 0
    assert [push(pushes), push(pushes), push(pushes)] == [1, 2, 3]
    assert pushes.last == 3


def test_pushes_are_replayed_in_order_from_the_last_one_seen() -> None:
    """As often as is asked for: only an acknowledgement takes one away."""
    pushes = Pushes(10, MANY)
    for _ in range(5):
        push(pushes)
    pushes.acknowledge(2)
    assert list(pushes) == list(pushes) == [frames(3, 20), frames(4, 20), frames(5, 20)]
    pushes.acknowledge(1)
    assert len(pushes) == 3
    pushes.acknowledge(5)
    assert list(pushes) == []
    assert push(pushes) == 6


def test_pushes_beyond_the_last_are_acknowledged_as_that() -> None:
    """A client that claims to have seen more than there was loses nothing that comes later."""
    pushes = Pushes(10, MANY)
    push(pushes)
    pushes.acknowledge(2**63 - 1)
    assert push(pushes) == 2
    assert list(pushes) == [frames(2, 20)]


def test_pushes_know_which_orders_they_end() -> None:
    """Those of the pushes that are kept: a client asking after another one must order again."""
    pushes = Pushes(10, MANY)
    push(pushes, "a", "b")
    push(pushes)
    push(pushes, "c")
    assert pushes.ended() == {"a", "b", "c"}
    pushes.acknowledge(1)
    assert pushes.ended() == {"c"}


def test_pushes_are_limited_in_number_and_bytes() -> None:
    """Acknowledged ones count no more, so a client that beats never meets the limits."""
    pushes = Pushes(2, 60)
    for _ in range(100):
        pushes.acknowledge(push(pushes, nbytes=60))
    assert (len(pushes), pushes.nbytes) == (0, 0)
    push(pushes)
    push(pushes)
    with pytest.raises(Full, match="3 messages of 60 bytes"):
        push(pushes)
    pushes = Pushes(2, 60)
    push(pushes, nbytes=60)
    with pytest.raises(Full, match="2 messages of 80 bytes"):
        push(pushes)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(9, 40)),
            st.tuples(st.just("acknowledge"), st.integers(0, 30)),
        )
    )
)
def test_pushes_keep_what_is_not_acknowledged(acts: list[tuple[str, int]]) -> None:
    """Whatever the order of events, what is kept is all that came after the highest number seen."""
    pushes = Pushes(MANY, MANY)
    kept: dict[int, tuple[bytes, bytes]] = {}
    for act, value in acts:
        if act == "push":
            number = push(pushes, f"order {pushes.last}", nbytes=value)
            kept[number] = frames(number, value)
        else:
            pushes.acknowledge(value)
            kept = {number: sent for number, sent in kept.items() if number > value}
        assert list(pushes) == list(kept.values())
        assert len(pushes) == len(kept)
        assert pushes.nbytes == sum(len(frame) for sent in kept.values() for frame in sent)
        assert pushes.ended() == {f"order {number - 1}" for number in kept}
