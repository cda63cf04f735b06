"""Settings from the environment: typed errors that name the variable and its value."""

from __future__ import annotations

import pytest

from entrepot.errors import ConfigurationError
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium
from entrepot.settings import Settings, read_settings, variable


def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("broker", "dead_s"), "60")
    assert read_settings().broker.dead_s == 60
    assert Settings(broker=Settings().broker).broker.dead_s == 60


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ENTREPOT_BROKER__DEAD_S", "-1", "ENTREPOT_BROKER__DEAD_S='-1'"),
        ("ENTREPOT_CLIENT__SLOTS", "many", "ENTREPOT_CLIENT__SLOTS='many'"),
        ("ENTREPOT_CLIENT__SLOT", "3", "ENTREPOT_CLIENT__SLOT"),
        ("ENTREPOT_CLIENT", "nonsense", "ENTREPOT_CLIENT__SLOTS=64"),
    ],
)
def test_a_value_that_cannot_be_is_a_typed_error(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as fault:
        read_settings()
    assert said in str(fault.value)
    with ShmMedium.create(64, 1) as medium, pytest.raises(ConfigurationError):
        Client("tcp://127.0.0.1:9", medium)
