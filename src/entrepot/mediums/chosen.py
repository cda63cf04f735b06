"""The medium that a client's settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from entrepot.mediums.base import Medium
from entrepot.mediums.filesystem import FilesystemMedium
from entrepot.mediums.shm import ShmMedium
from entrepot.mediums.tcp import TCPMedium

if TYPE_CHECKING:
    from entrepot.settings import ClientSettings


def create(settings: ClientSettings | None = None) -> Medium:
    """Make a medium of the kind, place and shape that ``settings`` say.

    :param settings: by default what the environment says.
    :raises ConfigurationError: they do not go together.
    :raises MediumError: it cannot be made here; see the ``create`` of that kind.
    """
    if settings is None:
        from entrepot.settings import read_settings  # pydantic takes a while to load

        settings = read_settings().client
    if settings.medium == "file":
        return FilesystemMedium.create(
            settings.slot_nbytes,
            settings.slots,
            root=settings.file_root,
            network=settings.file_network,
            poison=settings.poison,
        )
    if settings.medium == "tcp":
        return TCPMedium.create(
            settings.slot_nbytes,
            settings.slots,
            host=settings.tcp_host,
            port=settings.tcp_port,
            advertise=settings.tcp_advertise,
            timeout_s=settings.tcp_timeout_s,
            idle_s=settings.tcp_idle_s,
            slowest_nbytes_s=settings.tcp_slowest_nbytes_s,
            max_connections=settings.tcp_max_connections,
            poison=settings.poison,
        )
    return ShmMedium.create(settings.slot_nbytes, settings.slots, poison=settings.poison)
