"""The supplier's cache of attached mediums."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from entrepot.errors import BadAddress, ConfigurationError, MediumGone
from entrepot.mediums import Attachments, Medium, ShmMedium, attach


def mapped(medium: Medium) -> int:
    """How often the segment is mapped in this process; the owner's own mapping is one."""
    name = medium.address.removeprefix("shm:")
    return Path("/proc/self/maps").read_text().count(name)


def test_attaches_once() -> None:
    calls: list[str] = []

    def counted(address: str) -> Medium:
        calls.append(address)
        return attach(address)

    with ShmMedium.create(8, 1) as medium, Attachments(2, attach=counted) as attachments:
        first = attachments.get(medium.address)
        assert attachments.get(medium.address) is first
        assert calls == [medium.address]
        assert medium.address in attachments


def test_the_least_recently_used_leaves() -> None:
    with ExitStack() as stack:
        a, b, c = (stack.enter_context(ShmMedium.create(8, 1)) for _ in range(3))
        attachments = stack.enter_context(Attachments(2))
        attachments.get(a.address)
        second = attachments.get(b.address)
        attachments.get(a.address)
        attachments.get(c.address)
        assert len(attachments) == 2
        assert second.closed
        assert [mapped(medium) for medium in (a, b, c)] == [2, 1, 2]


def test_a_segment_whose_owner_went_does_not_stay_mapped() -> None:
    with ShmMedium.create(8, 1) as living, Attachments(8) as attachments:
        dead = ShmMedium.create(8, 1)
        attachments.get(dead.address)
        dead.close()
        assert mapped(dead) == 1
        attachments.get(living.address)
        assert mapped(dead) == 0
        assert len(attachments) == 1


def test_an_idle_supplier_drops_what_is_gone() -> None:
    with ShmMedium.create(8, 1) as living, Attachments(8) as attachments:
        attachments.get(living.address)
        assert attachments.drop_gone() == 0
        with ShmMedium.create(8, 1) as dead:
            attachments.get(dead.address)
        assert attachments.drop_gone() == 1
        assert mapped(dead) == 0
        assert living.address in attachments


def test_asking_again_for_what_is_gone_says_so() -> None:
    with Attachments(8) as attachments:
        with ShmMedium.create(8, 1) as medium:
            attachments.get(medium.address)
        for _ in range(2):
            with pytest.raises(MediumGone):
                attachments.get(medium.address)
        assert len(attachments) == 0
        assert mapped(medium) == 0


def test_a_bad_address_takes_no_room() -> None:
    with ShmMedium.create(8, 1) as medium, Attachments(1) as attachments:
        kept = attachments.get(medium.address)
        with pytest.raises(BadAddress):
            attachments.get("nothing")
        assert attachments.get(medium.address) is kept
        assert not kept.closed


def test_drop_and_close() -> None:
    with ShmMedium.create(8, 1) as one, ShmMedium.create(8, 1) as other:
        attachments = Attachments(4)
        attachments.get(one.address)
        attachments.get(other.address)
        attachments.drop(one.address)
        attachments.drop(one.address)
        assert (mapped(one), mapped(other)) == (1, 2)
        attachments.close()
        attachments.close()
        assert (mapped(one), mapped(other)) == (1, 1)
        assert not one.gone()
        assert not other.gone()


def test_a_medium_that_leaves_while_it_is_written_stays_until_then() -> None:
    with (
        ShmMedium.create(64, 1) as one,
        ShmMedium.create(64, 1) as other,
        Attachments(1) as attachments,
    ):
        window = attachments.get(one.address).view(0, 4, writable=True)
        attachments.get(other.address)
        window[:] = b"late"
        assert one.read(0, 4) == b"late"
        assert mapped(one) == 2
        del window
        assert mapped(one) == 1


def test_several_threads_share_one() -> None:
    with ExitStack() as stack:
        mediums = [stack.enter_context(ShmMedium.create(64, 4)) for _ in range(3)]
        attachments = stack.enter_context(Attachments(3))
        together = threading.Barrier(4)
        failures: list[BaseException] = []

        def supply(slot: int) -> None:
            together.wait()
            try:
                for turn in range(300):
                    medium = attachments.get(mediums[turn % 3].address)
                    medium.write(slot * 64, bytes([slot]) * 64, 64)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=supply, args=(slot,)) for slot in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert len(attachments) == 3
        for medium in mediums:
            for slot in range(4):
                assert medium.read(medium.offset(slot), 64) == bytes([slot]) * 64


def test_room_for_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="got 0"):
        Attachments(0)
