"""Where the sidecar listens, and why it cannot: it is in use, or no place of this machine."""

from __future__ import annotations

import socket

import pytest

from entrepot.cli.sidecar import _listening
from entrepot.errors import ConfigurationError, EndpointInUse


def test_a_port_that_another_has_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EndpointInUse, match=f"cannot listen at 127.0.0.1:{port}: "):
            _listening("127.0.0.1", port)


@pytest.mark.parametrize("host", ["nohost.invalid", "no host", "192.0.2.1", "a" * 70 + ".com"])
def test_a_host_that_is_not_this_machine_is_a_setting_to_change(host: str) -> None:
    """Nothing there is in use, and to stop something would not help."""
    with pytest.raises(ConfigurationError, match="give another --host or --port") as told:
        _listening(host, 0)
    assert f"cannot listen at {host}:0: " in str(told.value)
