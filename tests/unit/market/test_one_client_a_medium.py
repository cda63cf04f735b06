"""A medium has one client, for that client alone says which slot is free."""

from __future__ import annotations

import pytest

from entrepot.errors import Closed, ConfigurationError
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium, attach

NOWHERE = "tcp://127.0.0.1:9"


def test_a_second_client_of_a_medium_is_refused() -> None:
    with (
        ShmMedium.create(64, 2) as medium,
        Client(NOWHERE, medium, name="first"),
        pytest.raises(ConfigurationError, match="client first"),
    ):
        Client(NOWHERE, medium, name="second")


def test_a_closed_medium_is_refused_at_once() -> None:
    medium = ShmMedium.create(64, 2)
    medium.close()
    with pytest.raises(Closed, match="make another medium"):
        Client(NOWHERE, medium)


def test_an_attached_medium_is_refused() -> None:
    with (
        ShmMedium.create(64, 2) as medium,
        attach(medium.address) as other,
        pytest.raises(ConfigurationError, match="of its own"),
    ):
        Client(NOWHERE, other)
