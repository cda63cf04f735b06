"""The doctor: each thing that is wrong is found, named, and has a remedy."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from entrepot import doctor
from entrepot.cli.commands import app
from entrepot.doctor.filesystem import filesystem_of
from entrepot.doctor.finding import Finding, Level
from entrepot.market.broker import Broker
from entrepot.market.supplier import Supplier
from entrepot.mediums import shm
from entrepot.settings import ClientSettings, Settings, SupplierSettings
from tests.peer.raw import RawClient, RawSupplier

ANY = "tcp://127.0.0.1:*"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(ANY, ANY) as broker:
        yield broker


def examined(*subjects: str, sweep: bool = False, **client: Any) -> list[Finding]:
    settings = Settings(client=ClientSettings(**client), supplier=SupplierSettings())
    return list(doctor.examine(subjects, settings, sweep=sweep))


def asked(broker: Broker, timeout_s: float = 5.0) -> list[Finding]:
    return list(doctor.check_broker(broker.frontend, broker.backend, timeout_s=timeout_s))


def levels(findings: list[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def test_a_machine_without_faults_has_none() -> None:
    findings = examined("shm", "tcp", "file", "limits", slot_nbytes=1000, slots=2)
    assert levels(findings) == {Level.OK}, findings
    assert {finding.subject for finding in findings} == {"shm", "tcp", "file", "limits"}


def test_a_client_that_would_not_fit_is_told_before_it_starts() -> None:
    room, *_ = examined("shm", slot_nbytes=1 << 40, slots=64)
    assert room.level is Level.FAIL
    assert "65536 GiB" in room.said
    assert "shm_size" in room.remedy


def test_what_a_killed_owner_left_is_counted_and_swept_when_asked() -> None:
    made = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from entrepot import ShmMedium; m = ShmMedium.create(1000, 4);"
            "print(m.address, flush=True); os.kill(os.getpid(), 9)",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    name = made.stdout.strip().removeprefix("shm:")
    assert (shm.DIRECTORY / name).exists()
    found = next(f for f in doctor._leftovers(sweep=False))
    assert found.level is Level.WARN
    assert "entrepot doctor shm --sweep" in found.remedy
    assert (shm.DIRECTORY / name).exists()
    assert next(f for f in doctor._leftovers(sweep=True)).level is Level.OK
    assert not (shm.DIRECTORY / name).exists()


def test_an_advertised_host_that_leads_nowhere_is_found() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # taken, and nobody listens
        port = other.getsockname()[1]
        findings = examined("tcp", tcp_advertise=f"127.0.0.1:{port}")
    assert findings[-1].level is Level.FAIL
    assert "ENTREPOT_CLIENT__TCP_ADVERTISE" in findings[-1].remedy


def test_a_directory_that_is_not_there_is_found(tmp_path: Path) -> None:
    findings = examined("file", file_root=str(tmp_path / "missing"))
    assert levels(findings) == {Level.FAIL}
    assert str(tmp_path / "missing") in findings[0].said
    assert levels(examined("file", file_root=str(tmp_path), slot_nbytes=100)) == {Level.OK}


def test_no_broker_is_said_with_the_command_that_starts_one() -> None:
    (finding,) = doctor.check_broker("tcp://127.0.0.1:9", "tcp://127.0.0.1:9", timeout_s=1)
    assert finding.level is Level.FAIL
    assert "tcp://127.0.0.1:9" in finding.said
    assert finding.remedy == "entrepot broker --frontend tcp://127.0.0.1:9"


def test_orders_come_through_a_broker_that_works(broker: Broker) -> None:
    with Supplier(broker.backend, {"a": lambda _: b""}) as supplier:
        supplier.start()
        supplier.wait_registered(timeout_s=10)
        findings = asked(broker)
    assert levels(findings) == {Level.OK}, findings
    assert "orders come through" in findings[-1].said


def test_what_the_broker_complains_of_is_passed_on(broker: Broker) -> None:
    with RawClient(broker.frontend) as client, RawSupplier(broker.backend) as supplier:
        client.hello()
        client.order("o1", "nobody-makes-this")
        client.settled()
        supplier.ready("something-else")
        findings = asked(broker)
    (unservable,) = [finding for finding in findings if finding.level is Level.FAIL]
    assert "'nobody-makes-this'" in unservable.said
    assert "entrepot supplier" in unservable.remedy


def test_a_wrong_backend_is_told_from_a_wrong_frontend(broker: Broker) -> None:
    findings = list(doctor.check_broker(broker.frontend, "tcp://127.0.0.1:9", timeout_s=1.5))
    assert findings[0].level is Level.OK
    assert findings[-1].level is Level.FAIL
    assert "tcp://127.0.0.1:9" in findings[-1].said


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        ({"orders": {"oldest_age_s": 90.0, "queued": 7}}, "waited 90 s, with 7 queued"),
        ({"dropped": {"slow": 2}}, "2 sessions were dropped"),
        (
            {"suppliers": {"suspect": 1, "list": [{"name": "gpu-3", "state": "suspect"}]}},
            "gpu-3",
        ),
    ],
)
def test_each_figure_that_is_bad_is_a_warning(stats: dict[str, Any], said: str) -> None:
    healthy: dict[str, Any] = {
        "orders": {"unservable": 0, "oldest_age_s": 0.0, "queued": 0},
        "suppliers": {"connected": 1, "suspect": 0, "list": []},
        "products": [],
        "dropped": {},
        "refused": {},
    }
    assert list(doctor._complaints(healthy)) == []
    sick = {key: value | stats.get(key, {}) if isinstance(value, dict) else value
            for key, value in healthy.items()}  # fmt: skip
    (finding,) = doctor._complaints(sick)
    assert finding.level is Level.WARN
    assert said in finding.said
    assert finding.remedy


def test_network_file_systems_are_known_by_their_mount() -> None:
    assert filesystem_of(Path("/proc/self")) == "proc"
    assert filesystem_of(shm.DIRECTORY) == "tmpfs"


def test_a_supplier_that_looks_for_files_elsewhere_is_found(tmp_path: Path) -> None:
    """The client's file is made; nobody who is set so would find it."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    client = ClientSettings(file_root=str(mine), slot_nbytes=1000, slots=2)

    def found(root: Path | None) -> list[Finding]:
        supplier = SupplierSettings(file_root=None if root is None else str(root))
        return list(doctor.check_files(client, supplier))

    assert levels(found(mine)) == {Level.OK}
    for wrong in (other, tmp_path / "nowhere"):
        last = found(wrong)[-1]
        assert last.level is Level.FAIL
        assert f"ENTREPOT_SUPPLIER__FILE_ROOT is {str(wrong)!r}" in last.remedy
    unset = found(None)
    assert levels(unset) == {Level.OK}
    assert any("ENTREPOT_SUPPLIER__FILE_ROOT is not set" in each.said for each in unset)


def test_it_waits_for_a_broker_as_long_as_it_is_told(broker: Broker) -> None:
    frontend = broker.frontend
    broker.stop()
    (finding,) = doctor.check_broker(frontend, "tcp://127.0.0.1:9", timeout_s=0.25)
    assert finding.level is Level.FAIL
    waited = re.search(r"within ([\d.]+) s", finding.said)
    assert waited is not None
    assert 0.2 < float(waited[1]) < ClientSettings().timeout_s


@pytest.mark.parametrize("wrong", ["frontend", "backend"])
def test_an_endpoint_that_is_none_is_named(broker: Broker, wrong: str) -> None:
    ends = {"frontend": broker.frontend, "backend": broker.backend} | {wrong: "nonsense"}
    (finding,) = doctor.check_broker(**ends, timeout_s=5.0)
    assert finding.level is Level.FAIL
    assert "'nonsense' is no endpoint" in finding.said


def test_the_command_says_json_and_its_exit_code() -> None:
    good = CliRunner().invoke(app, ["doctor", "limits", "--json"])
    assert good.exit_code == 0
    assert json.loads(good.stdout.splitlines()[0])["level"] == "ok"
    bad = CliRunner().invoke(
        app, ["doctor", "broker", "--frontend", "tcp://127.0.0.1:9", "--timeout", "1"]
    )
    assert bad.exit_code == 1
    assert "-> entrepot broker --frontend tcp://127.0.0.1:9" in bad.stdout
    assert CliRunner().invoke(app, ["doctor", "ears"]).exit_code == 2
