"""The medium that a client's settings ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrepot.errors import ConfigurationError
from entrepot.mediums import FilesystemMedium, ShmMedium, TCPMedium, create
from entrepot.settings import ClientSettings


def test_shared_memory_unless_told() -> None:
    with create(ClientSettings(slots=3, slot_nbytes=100)) as medium:
        assert type(medium) is ShmMedium
        assert (medium.slots, medium.slot_nbytes, medium.poison) == (3, 100, False)


@pytest.mark.parametrize("network", [False, True])
def test_files(tmp_path: Path, network: bool) -> None:
    settings = ClientSettings(
        medium="file", file_root=str(tmp_path), file_network=network, slots=3, slot_nbytes=100
    )
    with create(settings) as medium:
        assert type(medium) is FilesystemMedium
        assert (medium.slots, medium.slot_nbytes) == (3, 100)
        assert [path.name for path in tmp_path.iterdir()] == [medium.address[5:]]
        assert ("-net-" in medium.address) == network
    with pytest.raises(ConfigurationError, match="FILE_ROOT"):
        create(ClientSettings(medium="file"))


def test_tcp() -> None:
    settings = ClientSettings(
        medium="tcp",
        tcp_host="0.0.0.0",
        tcp_advertise="client-7:7000",
        tcp_timeout_s=3.0,
        tcp_idle_s=4.0,
        tcp_slowest_nbytes_s=5,
        tcp_max_connections=6,
        slots=3,
        slot_nbytes=100,
        poison=True,
    )
    with create(settings) as medium:
        assert type(medium) is TCPMedium
        assert (medium.slots, medium.slot_nbytes, medium.poison) == (3, 100, True)
        assert medium.address == "tcp:client-7:7000"
        end = medium._owner_end
        assert (end.timeout_s, end.idle_s, end.slowest_nbytes_s) == (3.0, 4.0, 5)
        assert end._max_lines == 6


def test_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTREPOT_CLIENT__MEDIUM", "tcp")
    monkeypatch.setenv("ENTREPOT_CLIENT__TCP_HOST", "localhost")
    monkeypatch.setenv("ENTREPOT_CLIENT__SLOTS", "5")
    with create() as medium:
        assert medium.address.startswith("tcp:localhost:")
        assert medium.slots == 5
