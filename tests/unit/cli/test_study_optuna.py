"""Studies of Optuna's are none that these commands could read, and they do not say they did."""

from __future__ import annotations

from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna")

from entrepot.store import Store  # noqa: E402
from entrepot.study.catalog import Catalog  # noqa: E402
from entrepot.study.optuna import EntrepotStorage  # noqa: E402
from tests.unit.cli.studies import fill, objects, run  # noqa: E402

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capfd: Capture) -> Path:
    """A study of ours, and one of Optuna's beside it."""
    fill(tmp_path / "store")
    made = optuna.create_study(storage=EntrepotStorage(str(tmp_path / "store")))
    made.optimize(lambda trial: trial.suggest_float("x", 0.0, 1.0), n_trials=3)
    capfd.readouterr()
    return tmp_path / "store"


def test_a_study_of_optunas_is_not_listed_as_one_without_trials(
    folder: Path, capfd: Capture
) -> None:
    code, out, err = run(capfd, "list", str(folder))
    assert (code, err) == (0, "")
    assert "optuna" not in out
    *names, total = objects(run(capfd, "list", str(folder), "--json")[1])
    assert [one["name"] for one in names] == ["spam"]
    assert total["studies"] == 1


@pytest.mark.parametrize("command", [["show"], ["best"], ["export"], ["delete", "--yes"]])
def test_who_names_one_is_told_how_it_is_read(
    folder: Path, capfd: Capture, command: list[str]
) -> None:
    code, _, err = run(capfd, command[0], str(folder), "optuna/0", *command[1:])
    assert code == 1
    assert "is a study of Optuna's" in err
    with Store(folder, read_only=True) as store:
        assert len(store.scan("optuna/0/trial/")) == 6


def test_a_catalog_follows_none_of_them_also_when_a_block_was_closed(folder: Path) -> None:
    with Store(folder, durable=False) as store:
        catalog = Catalog(store)
        assert catalog.refresh() == {"spam"}
        store.close_block("optuna/0", 0, store.scan("optuna/0/trial/"))
        assert catalog.refresh() == set()
        again = Catalog(store)
        assert again.refresh() == {"spam"}
        assert again.studies.keys() == {"spam"}
        assert sum(one.strangers for one in again.studies.values()) == 0
