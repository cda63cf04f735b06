"""The connection, with a broker that misbehaves: who waits, who sleeps, when it is made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq

from entrepot.errors import (
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    ProtocolError,
    Refused,
    UsedAfterFork,
)
from entrepot.market import connection as connection_module
from entrepot.market import protocol
from entrepot.market.connection import Connection
from entrepot.market.protocol import HelloReply, Reply, encode
from tests.peer.waiting import until
from tests.ports import Ports
from tests.unit.market.fake_broker import LIMIT_S, Apart, FakeBroker, fork_under

NOTE = b"NOTE"
"""A command that stands for any other; its field is ``n``."""


class Recorder:
    """A party that writes down what it is told."""

    def __init__(self, endpoint: str, *, silence_s: float = 30.0, timeout_s: float = LIMIT_S):
        self.connection = Connection(
            self, endpoint, silence_s=silence_s, timeout_s=timeout_s, name="recorder"
        )
        self.session = os.urandom(16)
        self.resumed: list[bool] = []
        self.replies: list[Reply] = []
        self.notes: set[int] = set()
        self.try_again = False

    def hello(self, seq: int) -> bytes:
        return encode({"seq": seq, "protocol": 2, "session": self.session})

    def greeted(self, hello: HelloReply, resumed: bool) -> None:
        self.resumed.append(resumed)

    def denied(self, reply: Reply) -> Exception | None:
        return None if self.try_again else Refused(reply.code, reply.error)

    def replied(self, reply: Reply) -> None:
        self.replies.append(reply)

    def received(self, command: bytes, fields: bytes) -> None:
        try:
            said = msgspec.msgpack.decode(fields, type=dict[str, int])
        except msgspec.MsgspecError as fault:
            raise ProtocolError(str(fault)) from None
        self.notes.add(said.get("n", 0))

    def beat(self) -> bytes:
        return protocol.EMPTY

    # What a party's user does, each under the lock.

    def open(self) -> None:
        with self.connection.lock:
            self.connection.open()

    def wait_note(self, note: int, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.connection.lock:
            return self.connection.wait(lambda: note in self.notes, deadline)

    def open_and_wait(self, note: int) -> bool:
        self.open()
        return self.wait_note(note)

    def send_note(self, note: int) -> bool:
        with self.connection.lock:
            return self.connection.send(NOTE, encode({"n": note}))


SILENCE_S = 30.0


class Clock:
    """A recorder's time, which goes on when the test says so, however busy the machine is."""

    def __init__(self, recorder: Recorder) -> None:
        self.now = recorder.connection.clock()
        recorder.connection.clock = self

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleepers look at the clock once a second, which would hide that nobody woke them."""
    monkeypatch.setattr(connection_module, "MAX_SLEEP_S", 60.0)
    monkeypatch.setattr(connection_module, "CLOSE_S", 60.0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def apart() -> Iterator[Apart]:
    apart = Apart()
    yield apart
    apart.close()


Connect = Callable[..., Recorder]


@pytest.fixture
def connect(broker: FakeBroker) -> Iterator[Connect]:
    """Recorders that are closed in the end."""
    made: list[Recorder] = []

    def make(**options: Any) -> Recorder:
        recorder = Recorder(broker.endpoint, **options)
        made.append(recorder)
        return recorder

    yield make
    for recorder in made:
        recorder.connection.close()


def connected(broker: FakeBroker, connect: Connect, apart: Apart, **options: Any) -> Recorder:
    beat_s = options.pop("beat_s", 30.0)
    recorder = connect(**options)
    opened = apart(recorder.open)
    broker.greet(beat_s=beat_s)
    opened.result(LIMIT_S)
    return recorder


# --- the beginning ----------------------------------------------------------------------


def test_a_hello_that_no_broker_has_to_take_is_an_error_in_words(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    """It would be a connection that closes again and again. What is too much may be less later."""
    recorder = connect()
    session, recorder.session = recorder.session, bytes(protocol.HELLO_NBYTES)
    with pytest.raises(ConfigurationError, match=r"recorder has 4,194,3\d\d bytes .* 4,194,304"):
        recorder.open()
    recorder.session = session
    opened = apart(recorder.open)
    assert broker.greet()["session"] == session
    opened.result(LIMIT_S)


def test_nothing_happens_before_it_is_needed(broker: FakeBroker, connect: Connect) -> None:
    threads = threading.active_count()
    connect()
    assert threading.active_count() == threads
    with pytest.raises(TimeoutError):
        broker.receive(timeout_s=0.1)


def test_a_broker_that_is_not_there_is_named_and_may_come_later(apart: Apart) -> None:
    ports = Ports(1)
    (endpoint,) = ports.endpoints
    recorder = Recorder(endpoint, timeout_s=0.2)
    try:
        with pytest.raises(BrokerUnavailable, match=endpoint):
            recorder.open()
        recorder.connection.timeout_s = LIMIT_S
        opened = apart(recorder.open)
        with FakeBroker(endpoint) as broker:
            broker.greet()
            opened.result(LIMIT_S)
            assert recorder.connection.reconnects == 0
    finally:
        recorder.connection.close()
        ports.close()


def test_an_endpoint_that_cannot_be_is_refused(apart: Apart) -> None:
    recorder = Recorder("tcp:/nowhere")
    with pytest.raises(ConfigurationError, match="tcp:/nowhere"):
        recorder.open()
    recorder.connection.close()


def test_a_refused_hello_is_told_and_may_be_tried_again(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connect()
    opened = apart(recorder.open)
    heard = broker.receive()
    broker.peer = heard.peer
    broker.refuse("too_many_peers", "come back later", seq=heard.fields["seq"])
    with pytest.raises(Refused, match="come back later"):
        opened.result(LIMIT_S)
    opened = apart(recorder.open)
    broker.greet()
    opened.result(LIMIT_S)


def test_a_party_that_wants_to_is_tried_again_by_itself(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connect()
    recorder.try_again = True
    opened = apart(recorder.open)
    for _ in range(2):
        heard = broker.receive()
        broker.peer = heard.peer
        broker.refuse("too_many_peers", seq=heard.fields["seq"])
    broker.greet()
    opened.result(LIMIT_S)


@pytest.mark.parametrize("how", ["one frame", "version 1"])
def test_an_old_broker_is_called_that(
    broker: FakeBroker, connect: Connect, apart: Apart, how: str
) -> None:
    opened = apart(connect().open)
    if how == "version 1":
        broker.greet(version=1)
    else:
        broker.peer = broker.receive().peer
        broker.frames(encode({"ok": True, "peer_id": 1}))
    with pytest.raises(ProtocolError, match="upgrade the broker"):
        opened.result(LIMIT_S)


# --- made anew --------------------------------------------------------------------------


def test_a_broker_that_does_not_know_the_connection_is_greeted_again(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart)
    before = broker.peer
    until(lambda: time.monotonic() - recorder.connection._opened_at, lambda age: age > 0.3)
    broker.refuse("hello_first")
    waiting = apart(recorder.wait_note, 1)
    assert broker.greet(resumed=True)["session"] == recorder.session
    assert broker.peer != before
    broker.say(NOTE, {"n": 1})
    assert waiting.result(LIMIT_S)
    assert recorder.resumed == [False, True]


def test_a_session_is_resumed_only_by_the_broker_that_had_it(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    """A liar, or two brokers behind one address: whoever is another knows nothing."""
    recorder = connected(broker, connect, apart)
    broker.refuse("hello_first")
    waiting = apart(recorder.wait_note, 1)
    broker.instance = os.urandom(8)
    broker.greet(resumed=True)
    broker.say(NOTE, {"n": 1})
    waiting.result(LIMIT_S)
    assert recorder.resumed == [False, False]


def test_a_closed_connection_is_noticed_at_once(apart: Apart) -> None:
    """Also by who sleeps on it, each time. The next beat, like the silence, is far away."""
    ports = Ports(1)
    broker = FakeBroker(*ports.endpoints)
    recorder = Recorder(broker.endpoint)
    try:
        waiting = apart(recorder.open_and_wait, 1)
        broker.greet()
        for _ in range(3):
            until(lambda: recorder.connection._turns.led)
            broker.close()
            broker = FakeBroker(*ports.endpoints)
            assert broker.greet()["session"] == recorder.session
        broker.say(NOTE, {"n": 1})
        assert waiting.result(LIMIT_S)
    finally:
        recorder.connection.close()
        broker.close()
        ports.close()


def test_a_silent_broker_is_greeted_again(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart, silence_s=SILENCE_S, beat_s=0.05)
    clock = Clock(recorder)
    clock.now += SILENCE_S
    broker.greet(resumed=True)
    assert recorder.connection.reconnects == 1


def test_a_broker_that_beats_is_not_silent(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart, silence_s=SILENCE_S, beat_s=0.05)
    clock = Clock(recorder)
    for _ in range(20):
        clock.now += 0.9 * SILENCE_S
        assert broker.receive(beats=True).command == protocol.HEARTBEAT
        broker.say(protocol.HEARTBEAT, {"push": 0})
        until(lambda: recorder.connection._heard_at == clock.now)
    assert recorder.connection.reconnects == 0


def test_what_came_while_this_process_stood_still_is_no_silence(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    """Suspended, or its interpreter held by a long call: the messages are all in the buffer."""
    recorder = connected(broker, connect, apart, silence_s=SILENCE_S, beat_s=0.05)
    clock = Clock(recorder)
    with recorder.connection.lock:
        broker.say(NOTE, {"n": 1})
        until(lambda: recorder.connection._dealer.events(zmq.EVENTS) & zmq.POLLIN)
        clock.now += 2 * SILENCE_S
    until(lambda: recorder.notes)
    assert recorder.connection.reconnects == 0


def test_two_sides_that_do_not_get_along_do_not_spin(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart)
    waiting = apart(recorder.wait_note, 1)
    greeted = 0
    until_then = time.monotonic() + 1.0
    while time.monotonic() < until_then:
        broker.refuse("hello_first")
        broker.greet()
        greeted += 1
    assert greeted <= 6
    broker.say(NOTE, {"n": 1})
    assert waiting.result(LIMIT_S)


# --- waiting ----------------------------------------------------------------------------


def test_a_wait_ends_at_its_deadline(broker: FakeBroker, connect: Connect, apart: Apart) -> None:
    recorder = connected(broker, connect, apart)
    assert not recorder.wait_note(1, timeout_s=0.05)


def test_who_waits_is_told_when_the_broker_stays_away(apart: Apart) -> None:
    with FakeBroker() as broker:
        recorder = Recorder(broker.endpoint, timeout_s=0.5)
        opened = apart(recorder.open)
        broker.greet()
        opened.result(LIMIT_S)
    try:
        with pytest.raises(BrokerUnavailable):
            recorder.wait_note(1)
    finally:
        recorder.connection.close()


def test_each_of_many_threads_gets_what_it_waits_for(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart)
    waiting = {note: apart(recorder.wait_note, note) for note in range(1, 9)}
    for note in (5, 1, 8, 2, 7, 3, 6, 4):
        broker.say(NOTE, {"n": note})
        assert waiting[note].result(LIMIT_S)
        assert not any(waiting[later].done() for later in waiting if later not in recorder.notes)


def leads_or_is_done(recorder: Recorder, leader: Future[bool]) -> bool:
    return recorder.connection._turns.led or leader.done()


def test_a_leader_that_gives_up_leaves_the_socket_to_another(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart)
    leader: Future[bool] | None = None
    while (
        leader is None or leader.done()
    ):  # on a busy machine one may give up before it is seen to lead
        leader = apart(recorder.wait_note, 1, 0.3)
        until(partial(leads_or_is_done, recorder, leader))
    follower = apart(recorder.wait_note, 2)
    assert leader.result(LIMIT_S) is False
    broker.say(NOTE, {"n": 2})
    assert follower.result(LIMIT_S)


def test_a_message_that_comes_with_a_send_wakes_the_leader(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    """The send of one thread takes notice of the answer that another sleeps for."""
    recorder = connected(broker, connect, apart)
    for note in range(1, 200):
        waiting = apart(recorder.wait_note, note)
        until(lambda: recorder.connection._turns.led)
        broker.say(NOTE, {"n": note})
        recorder.send_note(note)
        assert waiting.result(LIMIT_S)


def test_close_ends_every_wait(broker: FakeBroker, connect: Connect, apart: Apart) -> None:
    recorder = connected(broker, connect, apart)
    waiting = [apart(recorder.wait_note, note) for note in range(4)]
    until(lambda: len(recorder.connection._turns._followers) == 3)
    recorder.connection.close()
    wait_for_all(waiting, LIMIT_S)
    for each in waiting:
        with pytest.raises(Closed):
            each.result(0)
    recorder.connection.close()
    with pytest.raises(Closed):
        recorder.connection.check()
    assert broker.expect(protocol.GOODBYE) == {}


def test_an_interrupt_leaves_the_connection_usable(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart)

    class Interrupted(Exception):
        pass

    interrupted = threading.Event()

    def interrupt(_number: int, _frame: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise Interrupted

    def interrupt_the_leader() -> None:
        until(lambda: recorder.connection._turns.led)
        while not interrupted.is_set():  # one that comes just before its sleep does not end it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            interrupted.wait(0.01)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        interrupting = apart(interrupt_the_leader)
        with pytest.raises(Interrupted):
            recorder.wait_note(1)
        interrupting.result(LIMIT_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    broker.say(NOTE, {"n": 1})
    assert recorder.wait_note(1)


# --- what makes no sense ----------------------------------------------------------------


@pytest.mark.parametrize(
    "frames",
    [
        (NOTE,),
        (NOTE, b"\xc1"),
        (NOTE, b"\xc1", b"more"),
        (NOTE, encode({"n": 2}), b"more", b"and more"),
        (b"", b""),
        (protocol.REPLY, encode({"seq": "no"})),
        (protocol.REPLY, b""),
    ],
)
def test_the_message_after_a_malformed_one_is_understood(
    broker: FakeBroker, connect: Connect, apart: Apart, frames: tuple[bytes, ...]
) -> None:
    recorder = connected(broker, connect, apart)
    broker.frames(*frames)
    broker.say(NOTE, {"n": 1})
    broker.say(NOTE, {"n": 3})
    assert recorder.wait_note(3)
    assert recorder.connection.malformed >= 1
    assert recorder.connection.reconnects == 0


def test_an_answer_to_an_earlier_hello_is_none_to_this_one(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connect()
    opened = apart(recorder.open)
    heard = broker.receive()
    broker.peer = heard.peer
    broker.refuse("too_many_peers", seq=heard.fields["seq"] + 1)
    broker.say(NOTE, {"n": 1})
    assert not recorder.notes
    assert not opened.done()
    recorder.connection.close()
    with pytest.raises(Closed):
        opened.result(LIMIT_S)


# --- the end of the process, or of half of it -------------------------------------------


def test_a_forked_child_cannot_use_it_and_does_no_harm(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    recorder = connected(broker, connect, apart)
    child = fork_under(recorder.connection.lock)
    if child == 0:
        try:
            recorder.connection.check()
        except UsedAfterFork:
            recorder.connection.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with pytest.raises(TimeoutError):
        broker.receive(timeout_s=0.1)
    broker.say(NOTE, {"n": 1})
    assert recorder.wait_note(1)


def test_a_party_that_is_dropped_says_goodbye(broker: FakeBroker, apart: Apart) -> None:
    recorder = Recorder(broker.endpoint)
    opened = apart(recorder.open)
    broker.greet(beat_s=0.05)
    opened.result(LIMIT_S)
    del recorder, opened
    assert broker.expect(protocol.GOODBYE) == {}


def test_a_process_that_ends_without_close_says_goodbye(broker: FakeBroker) -> None:
    program = (
        "import sys; from tests.unit.market.test_connection import Recorder\n"
        "recorder = Recorder(sys.argv[1]); recorder.open()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, broker.endpoint])
    broker.greet()
    assert broker.expect(protocol.GOODBYE) == {}
    assert process.wait(LIMIT_S) == 0


def test_a_beat_that_is_asked_for_comes_at_once(
    broker: FakeBroker, connect: Connect, apart: Apart
) -> None:
    """Without the lock, which whoever a signal interrupts may have; also before there is any."""
    early = connect()
    early.connection.beat_soon()
    recorder = connected(broker, connect, apart)
    with recorder.connection.lock:
        recorder.connection.beat_soon()
    assert broker.receive(beats=True).command == protocol.HEARTBEAT
