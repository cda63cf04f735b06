"""``entrepot store`` and ``entrepot doctor store`` on buckets of real servers."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import closing

import pytest
from typer.testing import CliRunner, Result

from entrepot.cli.commands import app
from entrepot.doctor.finding import Finding, Level
from entrepot.doctor.store import check_store
from entrepot.errors import EntrepotError, StoreDenied
from entrepot.settings import StoreSettings
from entrepot.store import Store
from entrepot.store.bucket import BucketStore
from entrepot.store.location import location_at
from entrepot.store.making import make_store
from entrepot.store.proof import refuses_stale
from entrepot.store.requests import Requests
from tests.integration.stores.conftest import BUCKET
from tests.stores.proxy import FaultProxy, How
from tests.stores.servers import SECRET, RcloneServer, SeaweedServer


def checked(url: str) -> list[Finding]:
    return list(check_store(url, clients=4, names=8))


def ran(*line: str) -> Result:
    return CliRunner().invoke(app, line)


# --- the doctor -------------------------------------------------------------------------


def test_a_server_that_keeps_the_condition_passes_and_nothing_is_left(store: BucketStore) -> None:
    findings = checked(store.url)
    assert {finding.level for finding in findings} == {Level.OK}, findings
    said = "\n".join(finding.said for finding in findings)
    for line in (
        "4 clients raced for 8 names: one winner each",
        "(read)",
        "(list)",
        "stale If-Match is refused",
        "12 MiB",
        "clock",
    ):
        assert line in said
    assert store.scan() == []
    keys = [key for key, _ in store._requests.below("blobs")]
    keys += [key for key, _ in store._requests.below("tmp") if "/clock-" not in key]
    assert keys == []


def test_a_server_that_ignores_it_fails_by_name(rclone: RcloneServer) -> None:
    (finding,) = checked(f"s3://{BUCKET}?endpoint={rclone.endpoint}")
    assert finding.level is Level.FAIL
    assert rclone.endpoint in finding.said
    assert "docs/stores.md" in finding.remedy


@pytest.mark.usefixtures("anonymous")
def test_a_server_on_which_the_proof_passes_and_a_race_does_not(
    open_seaweed: SeaweedServer, prefix: str
) -> None:
    # Some servers look first and write afterwards, which one client at a time cannot tell.
    with FaultProxy(open_seaweed.endpoint) as proxy:
        proxy.spoil(How.STRIPPED, "PUT", "doctor-.*/trial/", times=1000)
        findings = checked(f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}")
    (failed,) = [finding for finding in findings if finding.level is Level.FAIL]
    assert "8 were given to more than one" in failed.said
    assert "do not use this store" in failed.remedy


def test_who_refuses_a_stale_write_and_who_does_not(
    store: BucketStore, rclone: RcloneServer, prefix: str
) -> None:
    assert store.refuses_stale_writes()
    where = location_at(f"s3://{BUCKET}/{prefix}?endpoint={rclone.endpoint}", {})
    with closing(Requests(where, StoreSettings(), os.environ)) as requests:
        assert not refuses_stale(requests)


def test_the_doctor_by_its_command(store: BucketStore) -> None:
    result = ran("doctor", "store", f"s3://nobodys-bucket?endpoint={store.location.service}")
    assert result.exit_code == 1
    assert "fail  store   there is no bucket 'nobodys-bucket'" in result.stdout


# --- init -------------------------------------------------------------------------------


def test_init_makes_the_bucket_and_the_store(seaweed: SeaweedServer) -> None:
    url = f"s3://made-{secrets.token_hex(6)}/here?endpoint={seaweed.endpoint}"
    result = ran("store", "init", url, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"event": "store", "url": url, "made": True}
    with Store.open(url) as store:
        assert store.claim("a")
    assert ran("store", "init", url).stdout == f"{url} is a store already\n"


def test_init_of_a_new_prefix_in_a_bucket_that_is_there_says_that_it_made_a_store(
    seaweed: SeaweedServer, prefix: str
) -> None:
    """And by whoever opened it first, it is one already."""
    url = f"s3://{BUCKET}/{prefix}?endpoint={seaweed.endpoint}"
    assert ran("store", "init", url).stdout == f"made a store at {url}\n"
    assert ran("store", "init", url).stdout == f"{url} is a store already\n"
    other = f"s3://{BUCKET}/{prefix}-other?endpoint={seaweed.endpoint}"
    with Store.open(other) as store:
        assert store.claim("a")
    assert ran("store", "init", other).stdout == f"{other} is a store already\n"


def test_init_waits_for_a_server_that_is_not_up_yet(proxy: FaultProxy, prefix: str) -> None:
    url = f"s3://{BUCKET}/{prefix}?endpoint={proxy.endpoint}"
    proxy.spoil(How.CUT, "GET", times=4)
    assert ran("store", "init", url).exit_code == 1
    assert ran("store", "init", url, "--wait", "30").exit_code == 0


def test_init_that_may_not_says_so_and_nothing_secret(
    proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://made-{secrets.token_hex(6)}?endpoint={proxy.endpoint}"
    proxy.spoil(How.ANSWERED, "PUT", "X-Amz-Signature", status=403, code="AccessDenied")
    with pytest.raises(StoreDenied, match="make buckets") as told:
        make_store(url)
    assert SECRET not in str(told.value)
    assert "Signature" not in str(told.value)
    proxy.spoil(How.ANSWERED, "PUT", "X-Amz-", status=409, code="BucketAlreadyExists")
    with pytest.raises(StoreDenied, match="somebody else"):
        make_store(url)
    proxy.spoil(How.CUT, "PUT", "X-Amz-")
    with pytest.raises(EntrepotError) as told_more:
        make_store(url)
    assert "X-Amz" not in str(told_more.value)


# --- what is in it ----------------------------------------------------------------------


def test_ls_cat_and_gc_are_those_of_folders(store: BucketStore) -> None:
    digest = store.put(b"curve")
    store.claim("spam/trial/7/0", digest, {"state": "done"})
    assert ran("store", "ls", store.url).stdout.startswith("spam/trial/7/0  ")
    assert ran("store", "cat", store.url, digest).stdout == "curve"
    assert json.loads(ran("store", "cat", store.url, "spam/trial/7/0").stdout)["digest"] == digest
    assert "every blob is needed" in ran("store", "gc", store.url, "--grace", "0").stdout
