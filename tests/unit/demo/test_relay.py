"""The line that can be cut: what is sent arrives, unless it is cut, and then when it is mended."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from entrepot.demo.relay import Relay

LIMIT_S = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


@pytest.fixture
def relay(listener: socket.socket) -> Iterator[Relay]:
    relay = Relay(listener.getsockname()[1])
    yield relay
    relay.close()


@pytest.fixture
def ends(relay: Relay, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Who connected, and who was connected to."""
    with connected(relay) as near, listener.accept()[0] as far:
        far.settimeout(LIMIT_S)
        yield near, far


Ends = tuple[socket.socket, socket.socket]


def connected(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), LIMIT_S)


def received(end: socket.socket, nbytes: int) -> bytes:
    data = bytearray()
    while len(data) < nbytes:
        chunk = end.recv(1 << 16)
        assert chunk, "it was closed"
        data += chunk
    return bytes(data)


def test_more_than_the_kernel_takes_arrives_as_it_was_sent(ends: Ends) -> None:
    sent = os.urandom(16 << 20)
    near, far = ends
    for sender, receiver in ((near, far), (far, near)):
        sending = threading.Thread(target=sender.sendall, args=(sent,))
        sending.start()
        assert received(receiver, len(sent)) == sent
        sending.join()


def test_both_sides_may_send_at_once(ends: Ends) -> None:
    sent = os.urandom(4 << 20)
    sending = [threading.Thread(target=end.sendall, args=(sent,)) for end in ends]
    got: list[bytes] = []
    for end in ends:
        sending.append(threading.Thread(target=lambda end=end: got.append(received(end, 4 << 20))))
    for thread in sending:
        thread.start()
    for thread in sending:
        thread.join()
    assert got == [sent, sent]


@pytest.mark.parametrize("closing", [0, 1])
def test_the_end_of_one_side_is_the_end_of_the_other(ends: Ends, closing: int) -> None:
    ends[closing].sendall(b"last words")
    ends[closing].close()
    assert received(ends[1 - closing], 10) == b"last words"
    assert ends[1 - closing].recv(1) == b""


def test_nothing_passes_a_cut_and_all_of_it_a_mend(ends: Ends, relay: Relay) -> None:
    near, far = ends
    near.sendall(b"before")
    assert received(far, 6) == b"before"
    relay.cut()
    near.sendall(b" within")
    far.settimeout(0.3)  # three times as long as it takes to look
    with pytest.raises(TimeoutError):
        far.recv(1)
    relay.mend()
    far.settimeout(LIMIT_S)
    near.sendall(b" after")
    assert received(far, 13) == b" within after"


def test_a_connection_that_is_made_over_a_cut_is_there_after_the_mend(
    relay: Relay, listener: socket.socket
) -> None:
    relay.cut()
    with connected(relay) as near:
        near.sendall(b"hello")
        listener.settimeout(0.3)
        with pytest.raises(TimeoutError):
            listener.accept()
        relay.mend()
        listener.settimeout(LIMIT_S)
        with listener.accept()[0] as far:
            assert received(far, 5) == b"hello"


def test_where_nobody_listens_the_connection_ends() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else begins to
        relay = Relay(taken.getsockname()[1])
        try:
            with connected(relay) as near:
                assert near.recv(1) == b""
        finally:
            relay.close()


@pytest.mark.parametrize("cut", [False, True])
def test_closing_it_closes_all(relay: Relay, ends: Ends, cut: bool) -> None:
    if cut:
        relay.cut()
    relay.close()
    for end in ends:
        assert end.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connected(relay)
