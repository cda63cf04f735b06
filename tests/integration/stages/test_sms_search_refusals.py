"""What the scripts of the search refuse, and in which words: a line, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrepot.errors import ConfigurationError
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from examples.sms_search.run import ANY, ROOT, line, process
from examples.sms_search.search import agree

CLOSED = "tcp://127.0.0.1:1"


def ended(module: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    ran = subprocess.run(
        [sys.executable, "-m", f"examples.sms_search.{module}", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


def told(err: str) -> str:
    """What is said last, where no traceback is above it."""
    assert "Traceback" not in err, err
    return err.splitlines()[-1]


def test_data_that_is_not_there_is_told_with_the_way_out(tmp_path: Path) -> None:
    away = {"ENTREPOT_SMS_DATA": str(tmp_path / "none"), "SMS_FOLDER": "/data"}
    code, out, err = ended("search", "--store", str(tmp_path / "store"), "--json", **away)
    said = told(err)
    assert code == 1
    assert said.startswith("error (data_unavailable): cannot read ")
    assert "mounted at /data: under Compose, SMS_DATA=/that/folder" in said
    (event,) = map(json.loads, out.splitlines())
    assert (event["event"], event["code"]) == ("error", "data_unavailable")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("option", "code"),
    [
        (("--store", "s3://bucket/x?endpoint=http://127.0.0.1:1"), "store_unreachable"),
        (("--study", "a//b?"), "study_name"),
        (("--study", " "), "study_name"),
        (("--frontend", CLOSED), "broker_unavailable"),
    ],
)
def test_what_is_expected_ends_it_with_a_line(
    tmp_path: Path, option: tuple[str, str], code: str
) -> None:
    with process(
        *("entrepot.cli", "broker", "--frontend", ANY, "--backend", ANY),
        *("--json", "--log-level", "error"),
    ) as broker:
        frontend = json.loads(line(broker))["frontend"]
        found, _, err = ended(
            *("search", "--store", str(tmp_path / "store"), "--frontend", frontend, *option),
            ENTREPOT_STORE__TIMEOUT_S="1",
            AWS_ACCESS_KEY_ID="nobody",
            AWS_SECRET_ACCESS_KEY="nothing",
        )
    assert (found, told(err).partition(":")[0]) == (1, f"error ({code})")


@pytest.mark.parametrize("module", ["clean", "embed", "search"])
def test_a_setting_that_is_none_is_told_in_a_line(module: str) -> None:
    wrong = {"ENTREPOT_CLIENT__TIMEOUT_S": "soon", "SEARCH_STORE": "/nowhere/store"}
    code, _, err = ended(module, **wrong)
    assert (code, told(err).partition(":")[0]) == (1, "error (configuration)")


@pytest.mark.parametrize("module", ["clean", "embed"])
def test_a_stage_whose_broker_cannot_be_says_so_in_a_line(module: str) -> None:
    code, _, err = ended(module, "--backend", "foo")
    assert (code, told(err).partition(":")[0]) == (1, "error (configuration)")


@pytest.mark.parametrize(
    ("option", "value", "bounds"),
    [
        ("trials", "0", "from 1 on"),
        ("epochs", "0", "from 1 on"),
        ("epochs", "1.5", "from 1 on"),
        ("messages", "-1", "from 1 to 5574"),
        ("messages", "5575", "from 1 to 5574"),
    ],
)
def test_a_number_out_of_its_range_claims_nothing(
    tmp_path: Path, option: str, value: str, bounds: str
) -> None:
    store = tmp_path / "store"
    variable = {f"SEARCH_{option.upper()}": value}
    for arguments, environment in (((f"--{option}={value}",), {}), ((), variable)):
        code, _, err = ended("search", "--store", str(store), *arguments, **environment)
        assert code == 2
        assert f"argument --{option}: {value!r} is no whole number {bounds}" in told(err)
    assert not store.exists()


@pytest.mark.parametrize(("epochs", "messages"), [(3, 600), (4, 2_400)])
def test_who_takes_other_epochs_or_messages_than_the_first_is_refused(
    epochs: int, messages: int
) -> None:
    with MemoryStore() as store:
        agree(store, "sms", 4, 600)
        agree(store, "sms", 4, 600)
        with pytest.raises(ConfigurationError, match="takes 4 epochs of 600 messages, as whoever"):
            agree(store, "sms", epochs, messages)
        agree(store, "other", epochs, messages)


def test_a_search_of_other_epochs_claims_no_trial(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with Store.open(url) as store:
        agree(store, "sms", 3, 600)
    with process(
        *("entrepot.cli", "broker", "--frontend", ANY, "--backend", ANY),
        *("--json", "--log-level", "error"),
    ) as broker:
        frontend = json.loads(line(broker))["frontend"]
        code, _, err = ended("search", "--store", url, "--frontend", frontend, "--epochs", "2")
    assert code == 1
    assert "give --epochs and --messages as there" in told(err)
    with Store.open(url, read_only=True) as store:
        assert store.scan("sms/trial/") == []
