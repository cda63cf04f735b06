"""What the second half of the demonstration runs over, and that it says so.

What a process is allowed, and where its network is, is its own: each is tried in one of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from entrepot.demo.way import Loopback, free_port
from entrepot.mediums import Medium, attach
from entrepot.settings import SupplierSettings
from tests.peer.waiting import until

FIND = """
import os, sys
from entrepot.demo import namespaces, way
before = os.readlink("/proc/self/ns/net")
if os.geteuid() == 0 and "nobody" in sys.argv:
    os.setuid(65534)
with way.find() as found:
    print(found.what)
    print("as before" if os.readlink("/proc/self/ns/net") == before else "another")
"""

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: nobody else is asked for `ip`")


def python(script: str, *arguments: str, path: Path | None = None) -> list[str]:
    """The lines that ``script`` prints; its commands are looked for in ``path`` alone."""
    environment = os.environ | ({} if path is None else {"PATH": str(path)})
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_without_root_it_is_loopback_and_why_is_said() -> None:
    assert python(FIND, "nobody") == ["loopback: network namespaces want root", "as before"]


@root
def test_without_iproute2_it_is_loopback_and_why_is_said(tmp_path: Path) -> None:
    said = python(FIND, path=tmp_path)
    assert said == [
        "loopback: network namespaces want `ip`, of the package iproute2",
        "as before",
    ]


@root
def test_where_there_is_no_cable_it_is_loopback_in_the_network_from_before(tmp_path: Path) -> None:
    ip = tmp_path / "ip"
    ip.write_text('#!/bin/sh\necho "Unknown device type." >&2\nexit 2\n')
    ip.chmod(0o755)
    what, where = python(FIND, path=tmp_path)
    # Or the kernel refuses even the namespace, as in most containers.
    assert what in (
        "loopback: `ip link set lo up` failed: Unknown device type.",
        "loopback: a network namespace is refused: Operation not permitted",
    )
    assert where == "as before"


def test_what_the_kernel_refuses_is_said() -> None:
    said = python(
        "import os\n"
        "from entrepot.demo import namespaces\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: namespaces.leave()\n"
        "except namespaces.NotHere as why: print(why)\n"
    )
    assert said == ["a network namespace is refused: Operation not permitted"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ip", "`ip link near` failed: no device near"),
        ("other", "`ip link near` did not run: [Errno 2] No such file or directory: 'ip'"),
    ],
)
def test_what_ip_says_is_the_error(tmp_path: Path, name: str, said: str) -> None:
    command = tmp_path / name
    command.write_text('#!/bin/sh\necho "no device $2" >&2\nexit 1\n')
    command.chmod(0o755)
    script = (
        "from entrepot.demo import namespaces\n"
        "from entrepot.errors import DemoFailed\n"
        "try: namespaces.ip('link', 'near')\n"
        "except DemoFailed as fault: print(fault)\n"
    )
    assert python(script, path=tmp_path) == [said]


def test_a_medium_over_loopback_is_written_unless_the_line_is_cut() -> None:
    brief = SupplierSettings(tcp_timeout_s=0.2)
    with Loopback("for this test") as loopback, loopback.medium(64, 2) as medium:
        order = medium.grant(0, 64)

        def attached() -> Medium | None:
            try:
                return attach(order, settings=brief)
            except TimeoutError:  # this machine is busy
                return None

        hasty = until(attached)
        assert hasty is not None
        with hasty, attach(order) as supplier:
            supplier.at(order).write(0, b"before", 64, lease=1)
            loopback.cut()
            with pytest.raises(TimeoutError):
                hasty.at(order).write(0, b"within", 64, lease=1)
            assert medium.read(0, 6) == b"before"
            loopback.mend()
            supplier.at(order).write(0, b"after.", 64, lease=2)
            assert medium.read(0, 6) == b"after."


def test_a_port_that_somebody_else_took_meanwhile_is_not_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], free_port()]
        with (
            Loopback("for this test", free_port=lambda: ports.pop(0)) as loopback,
            loopback.medium(64, 2),
        ):
            assert ports == []
