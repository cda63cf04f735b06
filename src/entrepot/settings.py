"""Every setting, its unit and its default, for the library, the command line and the services.

Each is read from ``ENTREPOT_<SECTION>__<NAME>``, such as ``ENTREPOT_BROKER__DEAD_S=60``; what is
passed in code or on a command line wins. ``docs/settings.md`` is made from this file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from entrepot.arguments import LONGEST_S, shown
from entrepot.errors import ConfigurationError
from entrepot.sizes import parse_size, show_size

ENV_PREFIX = "ENTREPOT_"

UNACKNOWLEDGED = 1_024
"""Pushes that a client may have read without saying so."""


def _size(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _or_none(value: Any) -> Any:
    return None if value == "" else value


OrNone = Annotated[str | None, BeforeValidator(_or_none)]
"""Text, or nothing; an empty variable is nothing, as where Compose fills in one that is not set."""

Seconds = Annotated[float, Field(le=LONGEST_S)]
Size = Annotated[int, BeforeValidator(_size)]
"""A number of bytes, or in the environment also text with a unit: ``64MiB``."""


class Section(BaseModel):
    """Settings of one part. Immutable, and an unknown name is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BrokerSettings(Section):
    frontend: str = Field(
        default="tcp://127.0.0.1:5555", description="Where clients connect (tcp:// or ipc://)."
    )
    backend: str = Field(
        default="tcp://127.0.0.1:5556", description="Where suppliers connect (tcp:// or ipc://)."
    )
    beat_s: Seconds = Field(
        default=1.0, gt=0, description="Seconds between two heartbeats to a version-2 peer."
    )
    suspect_s: Seconds = Field(
        default=5.0,
        gt=0,
        description="Silence, in seconds, after which a supplier gets no new work.",
    )
    dead_s: Seconds = Field(
        default=30.0, gt=0, description="Silence, in seconds, after which a version-2 peer is lost."
    )
    reconnect_grace_s: Seconds = Field(
        default=0.5, ge=0, description="Seconds that a supplier has to reconnect before it is lost."
    )
    client_grace_s: Seconds = Field(
        default=10.0,
        ge=0,
        description="Seconds that a client has to reconnect before its orders end.",
    )
    v1_order_timeout_s: Seconds = Field(
        default=60.0, gt=0, description="Seconds that a version-1 supplier may hold one order."
    )
    max_order_attempts: int = Field(
        default=5, ge=1, description="Failures after which an order is FAILED."
    )
    max_order_losses: int = Field(
        default=3, ge=1, description="Lost suppliers after which an order is FAILED."
    )
    elsewhere_s: Seconds = Field(
        default=30.0,
        ge=0,
        description="Seconds that a failed order waits for a supplier that has not failed it; then "
        "one that has may try again.",
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
        default=131_072,
        ge=2_048,
        validate_default=True,
        description="Messages kept for a peer that does not read or acknowledge; at least 1,024 "
        "more than a client may have open orders, so that one that is only fast is not dropped.",
    )
    max_outbox_nbytes: Size = Field(
        default=64 << 20, ge=16 << 20, description="The same, in bytes."
    )
    max_message_nbytes: Size = Field(
        default=4 << 20,
        ge=4 << 20,
        description="Largest message taken from a peer, in bytes: no HELLO is larger than 4 MiB.",
    )
    max_pattern_program: int = Field(
        default=16_384,
        ge=64,
        description="Largest pattern, in instructions of its compiled program; a list may have 4 "
        "times as many.",
    )
    allow_drain: bool = Field(default=True, description="Whether a client may drain suppliers.")

    @field_validator("max_outbox")
    @classmethod
    def _holds_a_push_for_each_order(cls, value: int, info: ValidationInfo) -> int:
        orders = info.data.get("max_open_orders", 0)
        if value < orders + UNACKNOWLEDGED:
            raise ValueError(
                f"a client with {orders:,} open orders (max_open_orders) may be owed "
                f"{orders + UNACKNOWLEDGED:,} messages, and {value:,} are kept; give max_outbox at "
                f"least that, or max_open_orders at most {value - UNACKNOWLEDGED:,}"
            )
        return value


class SupplierSettings(Section):
    endpoint: str = Field(default="tcp://127.0.0.1:5556", description="The broker's backend.")
    credit: int = Field(
        default=1,
        ge=1,
        le=65_536,
        description="Orders held at once; a supplier of batches holds at least one batch.",
    )
    batch_wait_s: Seconds = Field(
        default=0.0,
        ge=0,
        le=60,
        description="Seconds that an order waits for others to be made with, in a batch.",
    )
    timeout_s: Seconds = Field(
        default=10.0, gt=0, description="Seconds to wait for the broker's answer to HELLO."
    )
    silence_s: Seconds = Field(
        default=5.0,
        gt=0,
        description="Silence of the broker, in seconds, before a new connection is made.",
    )
    max_attachments: int = Field(
        default=64, ge=1, description="Clients' mediums kept open at once by a supplier."
    )
    drain_s: Seconds = Field(
        default=30.0,
        gt=0,
        description="Seconds that a supplier's `stop`, and `entrepot drain`, wait for it to end.",
    )
    mediums: str = Field(
        default="",
        description="Mediums of clients that are taken, such as shm,tcp; all known ones if empty.",
    )
    file_root: OrNone = Field(
        default=None,
        description="Directory in which clients' files may be; without it no files are taken.",
    )
    tcp_networks: str = Field(
        default="",
        description="Networks in which clients may be, such as 10.0.0.0/8,fd00::/8; any if empty.",
    )
    tcp_timeout_s: Seconds = Field(
        default=10.0,
        gt=0,
        description="Seconds that a client may take to connect, to answer, or to take a part.",
    )
    tcp_slowest_nbytes_s: Size = Field(
        default=1 << 20,
        ge=1,
        description="Bytes a second below which a transfer, after the time-out, is given up.",
    )
    tcp_idle_s: Seconds = Field(
        default=30.0,
        gt=0,
        description="Seconds that a connection to a client is kept without being used.",
    )


class ClientSettings(Section):
    endpoint: str = Field(default="tcp://127.0.0.1:5555", description="The broker's frontend.")
    timeout_s: Seconds = Field(
        default=5.0, gt=0, description="Seconds to wait for the broker's answer to a request."
    )
    silence_s: Seconds = Field(
        default=5.0,
        gt=0,
        description="Silence of the broker, in seconds, before a new connection is made.",
    )
    slots: int = Field(default=64, ge=1, le=65_536, description="Slots of the medium.")
    slot_nbytes: Size = Field(default=1 << 20, ge=1, description="Bytes of one slot.")
    medium: Literal["shm", "file", "tcp"] = Field(
        default="shm", description="What carries the products: shm, file or tcp."
    )
    file_root: OrNone = Field(
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
    tcp_advertise: OrNone = Field(
        default=None,
        description="Where suppliers connect, host or host:port, if not where it listens.",
    )
    tcp_timeout_s: Seconds = Field(
        default=10.0,
        gt=0,
        description="Seconds that a supplier may take to say what it wants, or to send a part.",
    )
    tcp_slowest_nbytes_s: Size = Field(
        default=1 << 20,
        ge=1,
        description="Bytes a second below which a transfer, after the time-out, is given up.",
    )
    tcp_idle_s: Seconds = Field(
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


class StoreSettings(Section):
    connect_timeout_s: Seconds = Field(
        default=2.0, gt=0, description="Seconds in which a bucket must take a connection."
    )
    timeout_s: Seconds = Field(
        default=4.0,
        gt=0,
        description="Seconds of silence after which one try of a request for a record or a listing "
        "is given up. What became of a claim is then read back.",
    )
    transfer_timeout_s: Seconds = Field(
        default=60.0,
        gt=0,
        description="Seconds of silence after which one try of a blob's transfer is given up.",
    )
    attempts: int = Field(
        default=5,
        ge=1,
        le=100,
        description="Tries of a request that a bucket does not answer, each as long as the "
        "time-out: a store that hangs is waited for so many times as long, 20 s by default, before "
        "whoever asks is told. Opening tries twice.",
    )
    backoff_s: Seconds = Field(
        default=0.1,
        gt=0,
        description="Seconds until the second try; until each other one, by chance, from that to "
        "some twice as many as the time before.",
    )
    max_backoff_s: Seconds = Field(
        default=2.0, gt=0, description="Seconds until the next try at most."
    )
    concurrency: int = Field(
        default=16, ge=1, le=1_024, description="Requests to a bucket at once, of one call."
    )
    part_nbytes: Size = Field(
        default=8 << 20,
        ge=5 << 20,
        description="A larger blob is sent to a bucket in parts of so many bytes.",
    )


class SidecarSettings(Section):
    host: str = Field(default="127.0.0.1", description="Where the sidecar listens.")
    port: int = Field(default=9555, ge=0, le=65_535, description="Its port; any that is free if 0.")
    store: str | None = Field(
        default=None, description="The store whose studies are shown: a path, or its URL."
    )
    market_every_s: Seconds = Field(
        default=1.0, ge=0.1, description="Seconds between two questions to the broker."
    )
    store_every_s: Seconds = Field(
        default=5.0, ge=0.1, description="Seconds between two looks at the store."
    )
    timeout_s: Seconds = Field(
        default=2.0, gt=0, le=60, description="Seconds to wait for the broker or the store."
    )
    keep_s: Seconds = Field(
        default=900.0,
        ge=60,
        le=86_400,
        description="Seconds of the past that the page shows.",
    )
    stale_s: Seconds = Field(
        default=3600.0,
        gt=0,
        description="Seconds of silence, while the sidecar watches, after which a trial counts as "
        "abandoned.",
    )
    max_products: int = Field(
        default=20, ge=1, le=1_000, description="Products with series of their own; more are other."
    )
    max_studies: int = Field(
        default=100, ge=1, le=1_000, description="Studies with series of their own."
    )
    max_followed: int = Field(
        default=10_000, ge=1, description="Studies that are read; more are counted only."
    )
    max_listeners: int = Field(
        default=64, ge=1, le=1_024, description="Pages that are told of news at once."
    )
    token_file: str | None = Field(
        default=None, description="File with the token that the page and the API ask for."
    )
    open_metrics: bool = Field(
        default=True, description="Whether /metrics and the probes are open without the token."
    )


class Settings(BaseSettings):
    """All sections. :func:`read_settings` reads the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    broker: BrokerSettings = BrokerSettings()
    supplier: SupplierSettings = SupplierSettings()
    client: ClientSettings = ClientSettings()
    store: StoreSettings = StoreSettings()
    sidecar: SidecarSettings = SidecarSettings()


def read_settings() -> Settings:
    """The settings as the environment gives them.

    :raises ConfigurationError: a variable has a value that its setting cannot take.
    """
    _check_sections(os.environ)
    try:
        return Settings()
    except ValidationError as fault:
        raise ConfigurationError("; ".join(map(_told, fault.errors()))) from fault
    except SettingsError as fault:
        raise ConfigurationError(f"{fault}; {_NO_SECTION}") from fault


def _check_sections(environment: Mapping[str, str]) -> None:
    """What names a section that is not there would be passed over without a word.

    Names without ``__`` are others': Kubernetes makes ``ENTREPOT_BROKER_PORT`` of a service.
    """
    for name, value in environment.items():
        section, found, rest = name.removeprefix(ENV_PREFIX).partition("__")
        if not name.startswith(ENV_PREFIX) or not found or section.lower() in Settings.model_fields:
            continue
        near = get_close_matches(section.lower(), Settings.model_fields, 1)
        hint = (
            f"did you mean {variable(near[0], rest)}?"
            if near
            else "there are " + ", ".join(Settings.model_fields)
        )
        raise ConfigurationError(f"{name}={shown(value)}: there is no such section; {hint}")


def variable(*path: str) -> str:
    """The environment variable of a setting: ``ENTREPOT_CLIENT__SLOTS``."""
    return ENV_PREFIX + "__".join(path).upper()


_NO_SECTION = f"a section is no variable of its own: write {variable('client', 'slots')}=64"

_FAULTS = {
    "int_parsing": "is not a whole number",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_parsing": "is not a number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "bool_parsing": "is neither true nor false",
    "bool_type": "is neither true nor false",
    "string_type": "is not text",
    "greater_than": "must be over {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
"""The validator's kinds of fault, in the words of whoever set the variable."""


def _told(fault: Mapping[str, Any]) -> str:
    """One fault in a sentence: the variable, its value, and what is wrong."""
    path, kind, context = [*map(str, fault["loc"])], fault["type"], fault.get("ctx", {})
    name = variable(*path)
    given = f"{name}={shown(os.environ.get(name, fault['input']))}"  # as it was written
    if kind == "extra_forbidden":
        names = Settings.model_fields[path[0]].annotation.model_fields  # type: ignore[union-attr]
        near = [variable(path[0], name) for name in get_close_matches(path[-1], names, 1)]
        hint = f"did you mean {near[0]}?" if near else "`entrepot settings` lists all"
        return f"{given}: there is no such setting; {hint}"
    if kind == "value_error":
        return f"{name}: {context['error']}"
    if len(path) < 2:
        return f"{given}: {_NO_SECTION}"
    said = _FAULTS.get(kind)
    if said is None:
        return f"{given}: {fault['msg'].lower()}"
    limits = {key: _limit(name, value) for key, value in context.items()}
    return f"{given} {said.format(**limits)}"


def _limit(name: str, value: Any) -> str:
    if isinstance(value, int) and name.endswith(("_NBYTES", "_NBYTES_S")):
        return show_size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
