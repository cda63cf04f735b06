"""The demonstration's processes: what they say is heard, and none outlives it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrepot.demo.processes import Parts
from entrepot.errors import BrokerUnavailable, DemoFailed

FREE = ("--frontend", "tcp://127.0.0.1:0", "--backend", "tcp://127.0.0.1:0", "--json")


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_what_a_part_says_is_heard_and_it_leaves_in_order() -> None:
    with Parts() as parts:
        broker = parts.start("broker", "broker", *FREE)
        assert broker.wait_for("listening")["frontend"].startswith("tcp://127.0.0.1:")
        assert parts.end([broker]) == []
        assert broker.wait_for("stopped")["signal"] == "SIGTERM"


def test_a_part_that_ends_early_is_told_with_the_end_of_its_log() -> None:
    with Parts() as parts:
        broker = parts.start("broker", "broker", "--frontend", "nonsense")
        with pytest.raises(DemoFailed, match=r"broker ended with 1; its log ends: .*nonsense"):
            broker.wait_for("listening")


def test_a_part_that_says_nothing_is_not_waited_for() -> None:
    with Parts() as parts:
        broker = parts.start("broker", "broker", *FREE)
        with pytest.raises(DemoFailed, match=r"broker did not say 'nothing' within 0\.1 s"):
            broker.wait_for("nothing", timeout_s=0.1)


@pytest.mark.parametrize("frozen", [False, True])
def test_an_exception_ends_every_part(frozen: bool) -> None:
    pids = []

    def go_wrong() -> None:
        with Parts() as parts:
            for _ in range(2):
                part = parts.start("broker", "broker", *FREE)
                part.wait_for("listening")
                pids.append(part.pid)
            if frozen:
                part.freeze()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_wrong()
    assert len(pids) == 2
    assert not any(map(alive, pids))


def test_a_part_that_will_not_leave_is_killed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrepot.demo.processes.END_S", 0.2)
    with Parts() as parts:
        broker = parts.start("broker", "broker", *FREE)
        broker.wait_for("listening")
        broker.freeze()  # it cannot hear SIGTERM
        assert parts.end([broker]) == ["broker had not left 0.2 s after SIGTERM"]
        assert not alive(broker.pid)


def test_a_fault_is_put_down_to_the_part_that_died() -> None:
    def go_wrong(kill: bool) -> None:
        with Parts() as parts, parts.blamed():
            broker = parts.start("broker", "broker", *FREE)
            broker.wait_for("listening")
            if kill:
                os.kill(broker.pid, 9)
                os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
            raise BrokerUnavailable("tcp://here", 5.0, "asking")

    with pytest.raises(DemoFailed, match=r"broker ended with -9.*tcp://here"):
        go_wrong(kill=True)
    with pytest.raises(BrokerUnavailable):
        go_wrong(kill=False)
