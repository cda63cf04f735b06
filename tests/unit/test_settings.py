"""Settings from the environment: typed errors that name the variable and its value."""

from __future__ import annotations

import pytest

from entrepot.errors import ConfigurationError
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium
from entrepot.settings import ClientSettings, Settings, read_settings, variable


def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("broker", "dead_s"), "60")
    assert read_settings().broker.dead_s == 60
    assert Settings(broker=Settings().broker).broker.dead_s == 60


SIZES = [
    (section, name)
    for section, known in Settings.model_fields.items()
    for name in known.annotation.model_fields  # type: ignore[union-attr]
    if name.endswith(("_nbytes", "_nbytes_s"))
]


@pytest.mark.parametrize(("section", "name"), SIZES)
def test_every_size_may_have_a_unit(
    section: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, nbytes in (("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("67108864", 64 << 20)):
        monkeypatch.setenv(variable(section, name), text)
        assert getattr(getattr(read_settings(), section), name) == nbytes


@pytest.mark.parametrize(
    ("section", "name"),
    [("client", "file_root"), ("supplier", "file_root"), ("client", "tcp_advertise")],
)
def test_an_empty_place_is_none(monkeypatch: pytest.MonkeyPatch, section: str, name: str) -> None:
    """As where Compose fills in a variable that is not set; it is not the folder one is in."""
    monkeypatch.setenv(f"ENTREPOT_{section}__{name}".upper(), "")
    assert getattr(getattr(read_settings(), section), name) is None


def test_a_size_in_code_is_a_number_or_the_same_text() -> None:
    assert ClientSettings(slot_nbytes=1 << 20) == ClientSettings.model_validate(
        {"slot_nbytes": "1MiB"}
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BROKER__DEAD_S", "-1", "ENTREPOT_BROKER__DEAD_S='-1' must be over 0"),
        ("BROKER__DEAD_S", "soon", "ENTREPOT_BROKER__DEAD_S='soon' is not a number"),
        ("BROKER__DEAD_S", "nan", "ENTREPOT_BROKER__DEAD_S='nan' is not a finite number"),
        ("BROKER__DEAD_S", "inf", "ENTREPOT_BROKER__DEAD_S='inf' is not a finite number"),
        ("BROKER__DEAD_S", "1e10", "ENTREPOT_BROKER__DEAD_S='1e10' must be at most 1e+09"),
        ("BROKER__ALLOW_DRAIN", "perhaps", "ALLOW_DRAIN='perhaps' is neither true nor false"),
        ("CLIENT__SLOTS", "many", "ENTREPOT_CLIENT__SLOTS='many' is not a whole number"),
        ("CLIENT__SLOTS", "0", "ENTREPOT_CLIENT__SLOTS='0' must be at least 1"),
        ("CLIENT__SLOTS", "70000", "ENTREPOT_CLIENT__SLOTS='70000' must be at most 65536"),
        ("CLIENT__MEDIUM", "rdma", "ENTREPOT_CLIENT__MEDIUM='rdma' must be 'shm', 'file' or 'tcp'"),
        ("CLIENT__SLOT_NBYTES", "1Mi", "ENTREPOT_CLIENT__SLOT_NBYTES: '1Mi' is not a size; write"),
        ("CLIENT__SLOT_NBYTES", "-1", "ENTREPOT_CLIENT__SLOT_NBYTES: '-1' is not a size"),
        ("CLIENT__SLOT_NBYTES", "0", "ENTREPOT_CLIENT__SLOT_NBYTES: '0' is less than one byte"),
        ("BROKER__MAX_MESSAGE_NBYTES", "1kB", "NBYTES='1kB' must be at least 4MiB"),
        ("CLIENT__SLOT", "3", "no such setting; did you mean ENTREPOT_CLIENT__SLOTS?"),
        ("CLIENT__RINGS", "3", "ENTREPOT_CLIENT__RINGS='3': there is no such setting; `entrepot"),
        ("CLEINT__SLOTS", "3", "ENTREPOT_CLEINT__SLOTS='3': there is no such section; did you"),
        ("CLEINT__SLOTS", "3", "mean ENTREPOT_CLIENT__SLOTS?"),
        ("X__Y", "3", "there is no such section; there are broker, supplier, client"),
        ("CLIENT", "nonsense", "ENTREPOT_CLIENT__SLOTS=64"),
        ("CLIENT", "5", "ENTREPOT_CLIENT__SLOTS=64"),
    ],
)
def test_a_value_that_cannot_be_is_told_in_words(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ENTREPOT_{name}", value)
    with pytest.raises(ConfigurationError) as fault:
        read_settings()
    assert said in str(fault.value)
    with ShmMedium.create(64, 1) as medium, pytest.raises(ConfigurationError):
        Client("tcp://127.0.0.1:9", medium)
