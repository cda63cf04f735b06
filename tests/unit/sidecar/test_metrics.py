"""What is in the metrics, from when, and that docs/sidecar.md says the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric

from entrepot.sidecar.labels import LONGEST
from entrepot.sidecar.metrics import DROPS, REFUSALS, registry_of
from entrepot.sidecar.studies import SKIPS, StoreWatch
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study import report, take
from tests.unit.sidecar.figures import NOW, figures, product, watch

ROOT = Path(__file__).parents[3]
RAN = "spam/trial/0/0"


def registry(stats: dict[str, object] | None, store: StoreWatch | None) -> CollectorRegistry:
    return registry_of(watch(stats), store, max_products=20, max_studies=100, clock=lambda: NOW)


def follow(opens: Callable[[], Store]) -> StoreWatch:
    """A watch of the store that has looked once."""
    made = StoreWatch(opens, every_s=5.0, stale_s=60.0, most=10, clock=lambda: NOW)
    made.look()
    return made


def begin(store: Store, trial: int, study: str = "spam") -> None:
    assert take(store, "lr=1.0", study=study, trial=trial, me="gpu-7", goal="min")


@pytest.fixture
def everything() -> CollectorRegistry:
    """Something of everything was seen."""
    stats = figures()
    stats["products"] = [product("layer_3", 4, 1)]
    stats["classes"] = [{"patterns": ["layer_3"], "queued": 4, "in_flight": 1, "suppliers": 1}]
    store = MemoryStore()
    begin(store, 0)
    report(store, "lr=1.0", [0.5], study="spam", trial=0, me="gpu-7", state="done")
    return registry(stats, follow(store.view))


# --- from the start ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "reasons"),
    [
        ("entrepot_messages_refused_total", REFUSALS),
        ("entrepot_peers_dropped_total", DROPS),
        ("entrepot_records_skipped_total", SKIPS),
    ],
)
def test_every_reason_has_a_series_before_its_first(counter: str, reasons: tuple[str, ...]) -> None:
    """So that ``increase`` sees the first: a series that begins at 1 has not grown."""
    told = registry(figures(), follow(MemoryStore))
    for reason in reasons:
        assert told.get_sample_value(counter, {"reason": reason}) == 0, reason


def test_a_reason_that_is_new_here_is_counted_as_well() -> None:
    stats = figures()
    stats["refused"] = {"malformed": 2, "x" * 200: 3}
    (found,) = [
        each.samples
        for each in registry(stats, None).collect()
        if each.name == "entrepot_messages_refused"
    ]
    counts = {sample.labels["reason"]: sample.value for sample in found}
    assert len(counts) == len(REFUSALS) + 1
    assert counts["malformed"] == 2
    assert {len(reason): count for reason, count in counts.items() if count == 3} == {LONGEST: 3}


@pytest.mark.parametrize("op", ["open", "changes", "get"])
def test_what_the_store_was_never_asked_has_its_buckets(op: str) -> None:
    told = registry(figures(), StoreWatch(MemoryStore, every_s=5.0, stale_s=60.0, most=10))
    name = "entrepot_sidecar_store_request_seconds"
    assert told.get_sample_value(f"{name}_count", {"op": op}) == 0
    assert told.get_sample_value(f"{name}_bucket", {"op": op, "le": "+Inf"}) == 0


def test_the_reasons_to_refuse_are_the_protocols() -> None:
    codes = re.search(r"(?s)\n## Codes\n(.*?)\n\n[^`]", (ROOT / "docs" / "protocol.md").read_text())
    assert codes is not None
    assert {*re.findall(r"`(\w+)`", codes[1]), "internal"} - {"ok"} == set(REFUSALS)


def test_the_reasons_to_drop_are_the_brokers() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src/entrepot/market").glob("*.py"))
    said = re.findall(r'(?:\bDropped|_gone|_remove|_dismiss)\([^)"]*"(\w+)"', source)
    assert set(said) == set(DROPS)


# --- what is skipped --------------------------------------------------------------------


def test_each_record_that_is_torn_is_counted_although_another_was_mended(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for trial in (0, 1):
        begin(store, trial)
    studies = follow(lambda: Store(tmp_path, read_only=True))
    told = registry(figures(), studies)

    def torn() -> float | None:
        studies.look()
        return told.get_sample_value("entrepot_records_skipped_total", {"reason": "torn"})

    first, second = sorted(path for path in tmp_path.rglob("*") if is_record(path))
    whole = first.read_bytes()
    assert torn() == 0
    first.write_bytes(whole[:20])
    assert torn() == 1
    assert torn() == 1, "it was counted again"
    first.write_bytes(whole)
    assert torn() == 1, "a counter never falls"
    second.write_bytes(b"")
    assert torn() == 2


def is_record(path: Path) -> bool:
    return path.is_file() and b'"name":"spam/trial/' in path.read_bytes()


# --- what docs/sidecar.md says ----------------------------------------------------------


def said() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The kind and the labels of each metric, by name, as the table has them."""
    page = (ROOT / "docs" / "sidecar.md").read_text()
    section = page[page.index("\n## Metrics") : page.index("\n## Who may look")]
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for row in re.findall(r"(?m)^\| `.*$", section):
        names, kind, labels, _ = [cell.strip() for cell in row.strip("|").split("|")]
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} stands there twice"
            found[name] = (kind, tuple(re.findall(r"`(\w+)`", labels)))
    return found


def told(family: Metric) -> tuple[str, tuple[str, ...]]:
    labels = {tuple(label for label in each.labels if label != "le") for each in family.samples}
    (one,) = labels
    return family.type, one


def test_the_table_of_metrics_is_what_is_told(everything: CollectorRegistry) -> None:
    exposed = {
        family.name.removeprefix("entrepot_") + "_total" * (family.type == "counter"): told(family)
        for family in everything.collect()
    }
    assert exposed == said()


def test_every_reason_that_the_table_lists_has_a_series(everything: CollectorRegistry) -> None:
    page = (ROOT / "docs" / "sidecar.md").read_text()
    for counter, reasons in (("peers_dropped_total", DROPS), ("records_skipped_total", SKIPS)):
        (row,) = re.findall(rf"(?m)^\| `{counter}`.*\| (.*) \|$", page)
        assert row.split(";")[0].split(", ") == list(reasons)
