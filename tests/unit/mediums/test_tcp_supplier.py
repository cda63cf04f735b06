"""A supplier's end of TCP: its connections, and owners that are none, or do nothing."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from entrepot.errors import (
    BadAddress,
    Closed,
    ConfigurationError,
    Fenced,
    MediumDenied,
    MediumError,
    MediumGone,
    MediumTimeout,
)
from entrepot.mediums import Attachments, Medium, attach, tcp_supplier
from entrepot.mediums.tcp_attachment import TCPAttachment
from entrepot.mediums.tcp_supplier import IDLE_LINES
from entrepot.mediums.tcp_wire import (
    ANSWER,
    ANSWER_GO,
    FENCED,
    OK,
    REQUEST,
)
from entrepot.settings import SupplierSettings
from tests.unit.mediums.tcp_ends import (
    LIMIT_S,
    lines_of,
    raw_owner,
    say_hello,
    short,
    slot,
    tcp,
    until,
)

# --- a supplier's connections -----------------------------------------------------------


def test_orders_share_connections() -> None:
    with tcp(slots=8) as medium, Attachments(4) as attachments:
        for round_ in range(20):
            number = round_ % 8
            supplier = attachments.get(slot(medium, number))
            supplier.write(medium.offset(number), b"x", 64)
        assert len(attachments) == 1
        assert lines_of(medium) == 1


def test_several_threads_have_a_connection_each_and_few_are_kept() -> None:
    with tcp(slots=8) as medium, attach(slot(medium)) as supplier:
        orders = [slot(medium, number) for number in range(8)]
        ready = threading.Barrier(8)

        def write(number: int) -> None:
            ready.wait()
            for _ in range(30):
                supplier.at(orders[number]).write(
                    medium.offset(number), bytes([number]) * 64, 64, lease=1
                )

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(8):
            assert medium.read(medium.offset(number), 64) == bytes([number]) * 64
        until(lambda: lines_of(medium) <= IDLE_LINES)


def test_several_suppliers_fill_one_client() -> None:
    with tcp(slots=6, slot_nbytes=100_000) as medium, ExitStack() as stack:
        orders = [slot(medium, number) for number in range(6)]
        suppliers = [stack.enter_context(attach(order)) for order in orders]
        threads = [
            threading.Thread(
                target=supplier.write,
                args=(medium.offset(number), bytes([number + 1]) * 100_000, 100_000),
            )
            for number, supplier in enumerate(suppliers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(6):
            assert medium.read(medium.offset(number), 100_000) == bytes([number + 1]) * 100_000


def test_a_kept_connection_that_is_dead_is_made_anew() -> None:
    with tcp() as medium, attach(slot(medium)) as supplier:
        for attempt in range(3):
            for line in list(medium._owner_end._lines):
                line.hang_up()
            until(lambda: lines_of(medium) == 0)
            supplier.write(0, bytes([attempt]), 64, lease=1)
            assert medium.read(0, 1) == bytes([attempt])


def test_what_is_not_used_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_supplier, "LOOK_S", 0.0)
    now = time.monotonic()

    def attach_so(address: str) -> Medium:
        made = attach(address)
        assert isinstance(made, TCPAttachment)
        made._lines.terms = replace(made._lines.terms, clock=lambda: now)
        return made

    with tcp() as medium, Attachments(4, attach=attach_so) as attachments:
        attachments.get(slot(medium)).write(0, b"x", 64)
        assert attachments.drop_gone() == 0
        assert lines_of(medium) == 1
        now += SupplierSettings().tcp_idle_s
        assert attachments.drop_gone() == 1
        until(lambda: lines_of(medium) == 0)
        attachments.get(slot(medium)).write(0, b"again", 64)
        assert medium.read(0, 5) == b"again"


def test_an_owner_that_ended_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_supplier, "LOOK_S", 0.0)
    with Attachments(4) as attachments:
        with tcp() as medium:
            attachments.get(slot(medium)).write(0, b"x", 64)
        until(lambda: attachments.drop_gone() == 1)


def test_close_while_another_thread_writes() -> None:
    nbytes = 4 << 20
    with tcp(nbytes, 1) as medium:
        for _ in range(5):
            supplier = attach(slot(medium))
            writing = threading.Barrier(2)
            ends: list[str] = []

            def write(
                supplier: Medium = supplier,
                writing: threading.Barrier = writing,
                ends: list[str] = ends,
            ) -> None:
                writing.wait()
                try:
                    while True:
                        supplier.write(0, bytes(nbytes), nbytes)
                except Closed:
                    ends.append("told")

            thread = threading.Thread(target=write)
            thread.start()
            writing.wait()
            supplier.close()
            thread.join()
            assert ends == ["told"]
            until(lambda: lines_of(medium) == 0)


# --- owners that are none, or do nothing ------------------------------------------------


def test_nothing_is_said_to_another_service() -> None:
    """An address is a stranger's choice: what is there hears nothing but a connection."""
    heard: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        sock.sendall(b"220 mail ESMTP\r\n")
        heard.append(sock.recv(1000))

    with raw_owner(serve) as address:
        with pytest.raises(BadAddress, match="not the owner of a TCP medium"):
            attach(address, settings=short())
        until(lambda: heard)
    assert heard == [b""]


def test_a_service_that_waits_to_be_spoken_to_hears_nothing() -> None:
    heard: list[bytes] = []
    with raw_owner(lambda sock: heard.append(sock.recv(1000))) as address:
        with pytest.raises(MediumTimeout, match=r"0\.5 s"):
            attach(address, settings=short())
        until(lambda: heard)
    assert heard == [b""]


def test_a_service_that_hangs_up() -> None:
    def serve(sock: socket.socket) -> None:
        sock.shutdown(socket.SHUT_RDWR)

    with raw_owner(serve) as address, pytest.raises(BadAddress):
        attach(address, settings=short())


def stall(sock: socket.socket) -> None:
    """Do nothing until the other end hangs up."""
    hangs_up = select.poll()
    hangs_up.register(sock, select.POLLRDHUP)
    hangs_up.poll(LIMIT_S * 1000)


@pytest.mark.parametrize("nbytes", [8, 2 << 20])
def test_an_owner_that_never_answers_holds_nobody(nbytes: int) -> None:
    def serve(sock: socket.socket) -> None:
        say_hello(sock, nbytes)
        sock.recv(REQUEST.size, socket.MSG_WAITALL)
        stall(sock)

    with raw_owner(serve) as address, attach(address, settings=short()) as supplier:
        began = time.monotonic()
        with pytest.raises(MediumTimeout):
            supplier.write(0, bytes(nbytes), nbytes)
        assert 0.4 < time.monotonic() - began < LIMIT_S / 2


def test_an_owner_that_takes_a_part_and_no_more_holds_nobody() -> None:
    nbytes = 64 << 20

    def serve(sock: socket.socket) -> None:
        say_hello(sock, nbytes)
        sock.recv(REQUEST.size, socket.MSG_WAITALL)
        sock.sendall(ANSWER_GO)
        sock.recv(100_000, socket.MSG_WAITALL)
        stall(sock)

    with (
        raw_owner(serve) as address,
        attach(address, settings=short()) as supplier,
        pytest.raises(MediumTimeout),
    ):
        supplier.write_checksummed(0, bytes(nbytes), nbytes)


def test_an_owner_that_gives_an_input_in_trickles_holds_nobody() -> None:
    def serve(sock: socket.socket) -> None:
        say_hello(sock)
        sock.recv(REQUEST.size, socket.MSG_WAITALL)
        sock.sendall(ANSWER.pack(OK, 64))
        for _ in range(64):
            sock.sendall(b"x")
            time.sleep(0.2)

    with raw_owner(serve) as address, attach(address, settings=short()) as supplier:
        began = time.monotonic()
        with pytest.raises(MediumTimeout, match="bytes a second"):
            supplier.read(0, 64)
        assert time.monotonic() - began < 6.0


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.pack(99, 0),
        ANSWER.pack(OK, 1 << 60),
        ANSWER.pack(FENCED, 1 << 60),
        b"\xff" * ANSWER.size,
    ],
)
def test_an_answer_that_is_none(answer: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        say_hello(sock)
        sock.recv(REQUEST.size + 1, socket.MSG_WAITALL)
        sock.sendall(answer)
        stall(sock)

    with (
        raw_owner(serve) as address,
        attach(address, settings=short()) as supplier,
        pytest.raises(MediumError, match="not an answer"),
    ):
        supplier.write(0, b"x", 64)


def test_a_sentence_that_is_no_text_is_shown_all_the_same() -> None:
    def serve(sock: socket.socket) -> None:
        say_hello(sock)
        sock.recv(REQUEST.size + 1, socket.MSG_WAITALL)
        sock.sendall(ANSWER.pack(FENCED, 3) + b"\xff:(")
        stall(sock)

    with (
        raw_owner(serve) as address,
        attach(address, settings=short()) as supplier,
        pytest.raises(Fenced, match=r"refused: .:\("),
    ):
        supplier.write(0, b"x", 64)


def test_a_port_at_which_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that nobody else begins to
        port = taken.getsockname()[1]
        with pytest.raises(MediumGone, match="nothing listens"):
            attach(f"tcp:127.0.0.1:{port}/{'0' * 32}")


def test_a_name_that_leads_nowhere() -> None:
    with pytest.raises(MediumError, match=r"no\.such\.host\.invalid is not known"):
        attach(f"tcp:no.such.host.invalid:7/{'0' * 32}")


# --- networks ---------------------------------------------------------------------------


def test_a_supplier_connects_to_the_networks_that_it_may() -> None:
    with tcp() as medium:
        order = slot(medium)
        for networks in ("", "127.0.0.0/8", "10.0.0.0/8, 127.0.0.1/32"):
            attach(order, settings=short(tcp_networks=networks)).close()
        for networks in ("10.0.0.0/8", "fd00::/8", "127.0.0.2/32"):
            with pytest.raises(MediumDenied, match=r"127\.0\.0\.1 is in none"):
                attach(order, settings=short(tcp_networks=networks))
        with pytest.raises(ConfigurationError, match="list of networks"):
            attach(order, settings=short(tcp_networks="10.0.0.0/8;x"))


def test_a_name_is_judged_by_where_it_leads() -> None:
    with tcp(host="localhost") as medium, pytest.raises(MediumDenied):
        attach(slot(medium), settings=short(tcp_networks="10.0.0.0/8"))
