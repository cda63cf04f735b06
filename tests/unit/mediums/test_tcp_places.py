"""Where a TCP medium listens, and where it says that it does."""

from __future__ import annotations

import select
import socket
import threading
from typing import Any

import pytest

from entrepot.errors import (
    ConfigurationError,
    MediumError,
)
from entrepot.mediums import attach
from tests.integration.needs import lacking
from tests.unit.mediums.tcp_ends import (
    place,
    slot,
    tcp,
)

# --- where it is ------------------------------------------------------------------------


def test_nobody_beyond_this_machine_can_connect_unless_told() -> None:
    with tcp() as medium:
        assert medium.address.startswith("tcp:127.0.0.1:")
        assert medium._owner_end._listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["::1", "localhost", "127.0.0.2"])
def test_it_listens_by_version_6_and_by_name(host: str) -> None:
    if host == "::1" and not has_version_6():
        lacking("this machine has no IPv6")
    with tcp(host=host) as medium, attach(slot(medium)) as supplier:
        shown = f"[{host}]" if ":" in host else host
        assert medium.address.startswith(f"tcp:{shown}:")
        supplier.write(0, b"served", 64)
        assert medium.read(0, 6) == b"served"


def has_version_6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("advertise", "shown"),
    [
        ("client-7.pods.example", "client-7.pods.example:{}"),
        ("client:7000", "client:7000"),
        ("10.1.2.3", "10.1.2.3:{}"),
        ("fd00::7", "[fd00::7]:{}"),
        ("[fd00::7]:7000", "[fd00::7]:7000"),
        ("[fe80::1%eth0]", "[fe80::1%eth0]:{}"),
        ("under_score", "under_score:{}"),
    ],
)
def test_what_is_advertised_is_what_addresses_say(advertise: str, shown: str) -> None:
    with tcp(host="0.0.0.0", advertise=advertise) as medium:
        port = medium._owner_end._listener.getsockname()[1]
        assert medium.address == "tcp:" + shown.format(port)
        with medium.renew() as fresh:
            assert fresh.address.rpartition(":")[0] == medium.address.rpartition(":")[0]


@pytest.mark.parametrize(
    "advertise", ["", "a b", "x/y", "host:", "host:0", "host:65536", "host:7:8", "tcp://x:7", "x\n"]
)
def test_what_leads_nowhere_is_not_advertised(advertise: str) -> None:
    with pytest.raises(ConfigurationError, match="neither host nor host:port"):
        tcp(advertise=advertise)


def test_listening_everywhere_advertises_this_machines_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        if host == socket.gethostname():
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses
            ]
        return real(host, port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    addresses = ["127.0.1.1", "169.254.3.4", "10.20.30.40"]
    with tcp(host="0.0.0.0") as medium:
        assert medium.address.startswith("tcp:10.20.30.40:")
    addresses = ["127.0.1.1"]
    with pytest.raises(ConfigurationError, match=r"127\.0\.1\.1; give advertise"):
        tcp(host="0.0.0.0")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1", "a b"])
def test_a_place_that_is_none(host: str) -> None:
    with pytest.raises(ConfigurationError, match="no place to listen"):
        tcp(host=host)


def test_a_port_that_is_taken() -> None:
    with tcp() as medium, pytest.raises(MediumError, match="port free"):
        tcp(port=place(medium)[1])


def test_an_address_of_another_machine() -> None:
    with pytest.raises(MediumError, match="an address of this machine"):
        tcp(host="192.0.2.1")


def test_a_client_behind_another_address_than_it_listens_at() -> None:
    """A published port: what listens there only passes on."""
    with socket.create_server(("127.0.0.1", 0)) as front:
        published = f"localhost:{front.getsockname()[1]}"
        with tcp(advertise=published) as medium:
            behind = medium._owner_end._listener.getsockname()
            relay = threading.Thread(target=relay_one, args=(front, behind))
            relay.start()
            assert medium.address == f"tcp:{published}"
            with attach(slot(medium)) as supplier:
                supplier.write(0, b"through", 64)
            relay.join()
            assert medium.read(0, 7) == b"through"


def relay_one(front: socket.socket, to: tuple[str, int]) -> None:
    near, _ = front.accept()
    with near, socket.create_connection(to) as far:
        selector = select.poll()
        for sock in (near, far):
            selector.register(sock, select.POLLIN)
        while True:
            for fd, _ in selector.poll():
                source, target = (near, far) if fd == near.fileno() else (far, near)
                data = source.recv(65536)
                if not data:
                    return
                target.sendall(data)
