"""Every setting, its unit and its default, for the library, the command line and the services.

Each is read from ``ENTREPOT_<SECTION>__<NAME>``, such as ``ENTREPOT_BROKER__DEAD_S=60``; what is
passed in code or on a command line wins. ``docs/settings.md`` is made from this file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from entrepot.errors import ConfigurationError

ENV_PREFIX = "ENTREPOT_"


class Section(BaseModel):
    """Settings of one part. Immutable, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BrokerSettings(Section):
    frontend: str = Field(
        default="tcp://127.0.0.1:5555", description="Where clients connect (tcp:// or ipc://)."
    )
    backend: str = Field(
        default="tcp://127.0.0.1:5556", description="Where suppliers connect (tcp:// or ipc://)."
    )
    beat_s: float = Field(
        default=1.0, gt=0, description="Seconds between two heartbeats to a version-2 peer."
    )
    suspect_s: float = Field(
        default=5.0,
        gt=0,
        description="Silence, in seconds, after which a supplier gets no new work.",
    )
    dead_s: float = Field(
        default=30.0, gt=0, description="Silence, in seconds, after which a version-2 peer is lost."
    )
    reconnect_grace_s: float = Field(
        default=0.5, ge=0, description="Seconds that a supplier has to reconnect before it is lost."
    )
    client_grace_s: float = Field(
        default=10.0,
        ge=0,
        description="Seconds that a client has to reconnect before its orders end.",
    )
    v1_order_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds that a version-1 supplier may hold one order."
    )
    max_order_attempts: int = Field(
        default=5, ge=1, description="Failures after which an order is FAILED."
    )
    max_order_losses: int = Field(
        default=3, ge=1, description="Lost suppliers after which an order is FAILED."
    )
    max_open_orders: int = Field(default=65_536, ge=1, description="Open orders of one client.")
    max_open_orders_total: int = Field(default=1_000_000, ge=1, description="Open orders in all.")
    max_peers: int = Field(default=16_384, ge=1, description="Clients and suppliers in all.")
    max_products: int = Field(
        default=65_536,
        ge=16,
        description="Products remembered before those that nobody has on order are forgotten.",
    )
    max_idle_classes: int = Field(
        default=1_024, ge=0, description="Pattern lists remembered after their last supplier left."
    )
    max_outbox: int = Field(
        default=65_536,
        ge=1,
        description="Messages kept for a peer that does not read or acknowledge. A client "
        "acknowledges once in 1,024: with fewer than 2,048, one that is only fast is dropped too.",
    )
    max_outbox_nbytes: int = Field(default=64 << 20, ge=1 << 16, description="The same, in bytes.")
    max_message_nbytes: int = Field(
        default=4 << 20, ge=1 << 16, description="Largest message taken from a peer, in bytes."
    )
    max_pattern_program: int = Field(
        default=16_384,
        ge=64,
        description="Largest pattern, in instructions of its compiled program; a list may have 4 "
        "times as many.",
    )
    allow_drain: bool = Field(default=True, description="Whether a client may drain suppliers.")


class SupplierSettings(Section):
    endpoint: str = Field(default="tcp://127.0.0.1:5556", description="The broker's backend.")
    credit: int = Field(default=1, ge=1, le=65_536, description="Orders held at once.")
    timeout_s: float = Field(
        default=10.0, gt=0, description="Seconds to wait for the broker's answer to HELLO."
    )
    silence_s: float = Field(
        default=5.0,
        gt=0,
        description="Silence of the broker, in seconds, before a new connection is made.",
    )
    max_attachments: int = Field(
        default=64, ge=1, description="Clients' mediums kept open at once by a supplier."
    )
    drain_s: float = Field(
        default=30.0, gt=0, description="Seconds to finish what is held after SIGTERM."
    )
    mediums: str = Field(
        default="",
        description="Mediums of clients that are taken, such as shm,tcp; all known ones if empty.",
    )
    file_root: str | None = Field(
        default=None,
        description="Directory in which clients' files may be; without it no files are taken.",
    )
    tcp_networks: str = Field(
        default="",
        description="Networks in which clients may be, such as 10.0.0.0/8,fd00::/8; any if empty.",
    )
    tcp_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that a client may take to connect, to answer, or to take a part.",
    )
    tcp_slowest_nbytes_s: int = Field(
        default=1 << 20,
        ge=1,
        description="Bytes a second below which a transfer, after the time-out, is given up.",
    )
    tcp_idle_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a connection to a client is kept without being used.",
    )


class ClientSettings(Section):
    endpoint: str = Field(default="tcp://127.0.0.1:5555", description="The broker's frontend.")
    timeout_s: float = Field(
        default=5.0, gt=0, description="Seconds to wait for the broker's answer to a request."
    )
    silence_s: float = Field(
        default=5.0,
        gt=0,
        description="Silence of the broker, in seconds, before a new connection is made.",
    )
    slots: int = Field(default=64, ge=1, le=65_536, description="Slots of the medium.")
    slot_nbytes: int = Field(default=1 << 20, ge=1, description="Bytes of one slot.")
    medium: Literal["shm", "file", "tcp"] = Field(
        default="shm", description="What carries the products: shm, file or tcp."
    )
    file_root: str | None = Field(
        default=None, description="Directory in which a medium of files makes its own."
    )
    file_network: bool = Field(
        default=False, description="Whether that directory is on a network file system."
    )
    tcp_host: str = Field(
        default="127.0.0.1", description="Where a TCP medium listens: an address, or a name."
    )
    tcp_port: int = Field(
        default=0, ge=0, le=65_535, description="Its port; any that is free if 0."
    )
    tcp_advertise: str | None = Field(
        default=None,
        description="Where suppliers connect, host or host:port, if not where it listens.",
    )
    tcp_timeout_s: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that a supplier may take to say what it wants, or to send a part.",
    )
    tcp_slowest_nbytes_s: int = Field(
        default=1 << 20,
        ge=1,
        description="Bytes a second below which a transfer, after the time-out, is given up.",
    )
    tcp_idle_s: float = Field(
        default=120.0,
        gt=0,
        description="Seconds that a supplier may keep its connection without using it.",
    )
    tcp_max_connections: int = Field(
        default=256, ge=1, description="Suppliers connected to a TCP medium at once."
    )
    max_corrupt: int = Field(
        default=3, ge=1, description="Wrong checksums in a row before CorruptProduct is raised."
    )
    poison: bool = Field(
        default=False,
        description="Debugging: overwrite a slot when it is freed, so that late reads show.",
    )


class Settings(BaseSettings):
    """All sections. :func:`read_settings` reads the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    broker: BrokerSettings = BrokerSettings()
    supplier: SupplierSettings = SupplierSettings()
    client: ClientSettings = ClientSettings()


def read_settings() -> Settings:
    """The settings as the environment gives them.

    :raises ConfigurationError: a variable has a value that its setting cannot take.
    """
    try:
        return Settings()
    except ValidationError as fault:
        said = [
            f"{variable(*map(str, error['loc']))}={error['input']!r}: {error['msg'].lower()}"
            for error in fault.errors()
        ]
        raise ConfigurationError("; ".join(said)) from fault
    except SettingsError as fault:
        raise ConfigurationError(
            f"{fault}; a section is no variable of its own: write {variable('client', 'slots')}=64"
        ) from fault


def variable(*path: str) -> str:
    """The environment variable of a setting: ``ENTREPOT_CLIENT__SLOTS``."""
    return ENV_PREFIX + "__".join(path).upper()
