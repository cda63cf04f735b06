"""The application over HTTP: what it answers, to whom, and in which words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from entrepot.errors import StoreError
from entrepot.settings import Settings, SidecarSettings
from entrepot.sidecar.app import create_app
from entrepot.sidecar.market import MarketWatch
from entrepot.sidecar.studies import StoreWatch
from entrepot.store.memory import MemoryStore
from entrepot.study import Space, report, take
from tests.peer.waiting import until
from tests.unit.sidecar.figures import NOW, figures, product, watch

SPACE = Space().real("lr", 0.0, 10.0)
ODD = "team/<script>alert(1)</script> ñ"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ran(store: MemoryStore, study: str, trial: int, state: str = "done") -> None:
    point = SPACE.point(lr=float(trial % 10))
    assert take(store, point, study=study, trial=trial, me="gpu-7", goal="min")
    if state != "running":
        report(
            store,
            point,
            [trial + 1.0, trial + 0.5],
            study=study,
            trial=trial,
            me="gpu-7",
            state=state,
        )


def seen(store: MemoryStore, clock: Clock | None = None, stale_s: float = 60.0) -> StoreWatch:
    made = StoreWatch(
        store.view,
        every_s=5.0,
        stale_s=stale_s,
        most=1_000,
        clock=lambda: NOW,
        watch=clock or Clock(),
    )
    made.look()
    return made


def client(market: MarketWatch, store: StoreWatch | None = None, **settings: Any) -> TestClient:
    made = Settings(sidecar=SidecarSettings(store="/mnt/shared", **settings))
    app = create_app(made, market, store, clock=lambda: NOW)
    return TestClient(app, raise_server_exceptions=False)  # not entered: nothing is started


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    for trial in range(4):
        ran(made, "spam", trial)
    ran(made, "spam", 4, "pruned")
    ran(made, "spam", 5, "running")
    ran(made, ODD, 0)
    return made


def metrics(asked: TestClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    answer = asked.get("/metrics")
    assert answer.status_code == 200
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), "it stands there twice"
            found[sample.name][labels] = sample.value
    return found


# --- probes -----------------------------------------------------------------------------


def test_it_is_alive_whatever_else_is_not() -> None:
    asked = client(watch(None))
    assert asked.get("/healthz").text == "ok\n"
    assert asked.head("/healthz").status_code == 200
    assert asked.head("/readyz").status_code == 503


def test_it_is_ready_while_the_broker_answers() -> None:
    assert client(watch(figures())).get("/readyz").status_code == 200
    answer = client(watch(None, "no answer in 2 s")).get("/readyz")
    assert (answer.status_code, "no answer in 2 s" in answer.text) == (503, True)


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/studies?name=spam", "/api/v1/stats", "/api/v1/studies", "/metrics"]
)
def test_whoever_asks_for_the_head_gets_that(store: MemoryStore, path: str) -> None:
    """``curl -I``, and what watches whether a page is there."""
    asked = client(watch(figures()), seen(store))
    got, head = asked.get(path), asked.head(path)
    assert (head.status_code, head.text) == (got.status_code, "") == (200, "")
    for name in ("content-type", "content-security-policy"):
        assert head.headers[name] == got.headers[name]
    assert asked.head("/nowhere").status_code == 404
    assert asked.post(path).status_code == 405


def test_the_head_of_news_that_never_end_is_refused() -> None:
    assert client(watch(figures())).head("/api/v1/events").status_code == 405


# --- metrics ----------------------------------------------------------------------------


def test_the_brokers_figures_are_metrics() -> None:
    stats = figures(queued=5, fulfilled=7, unservable=2)
    stats["products"] = [product("layer_3", 4, 1), product("other", 1), product(None, 30)]
    found = metrics(client(watch(stats)))
    assert found["entrepot_broker_up"] == {(): 1.0}
    assert found["entrepot_orders_queued"] == {
        (("product", "layer_3"),): 4.0,
        (("product", "other"),): 31.0,
    }
    assert found["entrepot_orders_total"][(("outcome", "fulfilled"),)] == 7.0
    assert found["entrepot_orders_unservable"] == {(): 2.0}
    assert found["entrepot_order_wait_seconds_bucket"][(("le", "+Inf"),)] == 0.0


def test_a_broker_that_is_gone_is_no_figures_of_yesterday() -> None:
    gone = watch(figures(queued=5))
    gone._lost("it is gone")
    found = metrics(client(gone))
    assert found["entrepot_broker_up"] == {(): 0.0}
    assert "entrepot_orders_queued" not in found


def test_ten_thousand_products_are_a_few_series() -> None:
    stats = figures()
    stats["products"] = [product(f"p{number}" * 50, number) for number in range(10_000)]
    found = metrics(client(watch(stats), max_products=20))
    assert len(found["entrepot_orders_queued"]) == 21
    assert sum(found["entrepot_orders_queued"].values()) == sum(range(10_000))


def test_studies_are_metrics(store: MemoryStore) -> None:
    clock = Clock()
    studies = seen(store, clock)
    clock.now = 61.0
    studies.look()
    found = metrics(client(watch(figures()), studies))
    states = {
        dict(labels)["state"]: value
        for labels, value in found["entrepot_study_trials"].items()
        if dict(labels)["study"] == "spam"
    }
    assert states == {
        "running": 0.0,
        "done": 4.0,
        "pruned": 1.0,
        "failed": 0.0,
        "released": 0.0,
        "abandoned": 1.0,
    }
    assert found["entrepot_study_best_score"][(("goal", "score"), ("study", "spam"))] == 0.5
    assert found["entrepot_store_up"] == {(): 1.0}
    changes = (("op", "changes"), ("outcome", "ok"))
    assert found["entrepot_sidecar_store_requests_total"][changes] == 2.0


def test_a_thousand_studies_are_a_hundred_series() -> None:
    store = MemoryStore()
    for number in range(300):
        take(store, "lr=1.0", study=f"s{number}", trial=0, me="m", goal="min")
    asked = client(watch(figures()), seen(store), max_studies=100)
    found = metrics(asked)
    assert len(found["entrepot_study_trials"]) == 600
    assert found["entrepot_studies"] == {(): 300.0}
    assert found["entrepot_studies_without_series"] == {(): 200.0}
    assert len(asked.get("/").content) < 200_000


# --- the API ----------------------------------------------------------------------------


def test_stats_are_the_brokers() -> None:
    said = client(watch(figures(queued=5))).get("/api/v1/stats").json()
    assert (said["up"], said["stats"]["orders"]["queued"]) == (True, 5)


def test_studies_and_one_of_any_name(store: MemoryStore) -> None:
    asked = client(watch(figures()), seen(store))
    listed = asked.get("/api/v1/studies").json()
    assert {each["study"] for each in listed["studies"]} == {"spam", ODD}
    assert (listed["total"], listed["next"]) == (2, None)
    one = asked.get("/api/v1/studies", params={"limit": 1}).json()
    assert (len(one["studies"]), one["next"]) == (1, 1)
    said = asked.get("/api/v1/studies/spam").json()
    assert said["states"] == {"done": 4, "pruned": 1, "running": 1}
    assert (said["best"][0]["trial"], said["best"][0]["score"]) == (0, 0.5)
    assert asked.get(f"/api/v1/studies/{ODD}").json()["trials"] == 1
    assert asked.get(f"/api/v1/studies/{ODD}/trials").json()["trials"][0]["point"] == "lr=0.0"


def test_trials_come_in_pages_and_by_state(store: MemoryStore) -> None:
    asked = client(watch(figures()), seen(store))
    found: list[int] = []
    after: int | None = None
    while True:
        query = {"limit": 2} | ({} if after is None else {"after": after})
        said = asked.get("/api/v1/studies/spam/trials", params=query).json()
        found += [each["trial"] for each in said["trials"]]
        after = said["next"]
        if after is None:
            break
    assert found == [0, 1, 2, 3, 4, 5]
    pruned = asked.get("/api/v1/studies/spam/trials", params={"state": "pruned"}).json()
    assert [each["trial"] for each in pruned["trials"]] == [4]


def test_a_curve_is_read_when_it_is_asked_for(store: MemoryStore) -> None:
    asked = client(watch(figures()), seen(store))
    assert asked.get("/api/v1/studies/spam/trials/2/curve").json() == {
        "trial": 2,
        "reports": [3.0, 2.5],
    }


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/v1/studies/none", 404, "'none'"),
        ("/api/v1/studies/none/trials", 404, "'none'"),
        ("/api/v1/studies/spam/trials/77/curve", 404, "no trial 77"),
        ("/api/v1/studies/spam/trials/x/curve", 422, "trial"),
        ("/api/v1/studies/spam/trials?state=lost", 422, "state"),
        ("/api/v1/studies/spam/trials?limit=0", 422, "limit"),
        ("/api/v1/studies/spam/trials?after=99999999999999999999999", 422, "after"),
        ("/api/v1/nothing", 404, "Not Found"),
        ("/nothing", 404, "Not Found"),
    ],
)
def test_what_is_wrong_is_a_problem_in_words(
    store: MemoryStore, path: str, status: int, said: str
) -> None:
    answer = client(watch(figures()), seen(store)).get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert (told["status"], said in told["detail"]) == (status, True)


def test_without_a_store_it_says_how_to_follow_one() -> None:
    answer = client(watch(figures())).get("/api/v1/studies")
    assert (answer.status_code, "--store" in answer.json()["detail"]) == (404, True)


def test_a_store_that_is_gone_is_said_and_comes_back(store: MemoryStore) -> None:
    studies = seen(store)
    catalog = studies._catalog
    assert catalog is not None
    refresh = catalog.refresh

    def gone() -> set[str]:
        raise StoreError("the disk is away")

    catalog.refresh = gone  # type: ignore[method-assign]
    studies.look()
    asked = client(watch(figures()), studies)
    listed = asked.get("/api/v1/studies").json()
    assert (listed["up"], listed["why"], listed["total"]) == (False, "the disk is away", 2)
    assert metrics(asked)["entrepot_store_up"] == {(): 0.0}
    assert "the disk is away" in asked.get("/").text
    catalog.refresh = refresh  # type: ignore[method-assign]
    studies.look()
    assert asked.get("/api/v1/studies").json()["up"]


# --- the token --------------------------------------------------------------------------


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef0123")
    return str(file)


def test_with_a_token_page_and_api_are_closed(token: str) -> None:
    asked = client(watch(figures()), token_file=token)
    for path in ("/", "/api/v1/stats", "/api/v1/openapi.json", "/docs", "/static/page.js"):
        answer = asked.get(path)
        assert answer.status_code == 401, path
        assert "WWW-Authenticate" in answer.headers
        header = {"Authorization": "Bearer 0123456789abcdef0123"}
        assert asked.get(path, headers=header).status_code == 200, path
    for path in ("/healthz", "/readyz", "/metrics"):
        assert asked.get(path).status_code == 200, path


def test_metrics_may_be_closed_as_well(token: str) -> None:
    asked = client(watch(figures()), token_file=token, open_metrics=False)
    assert asked.get("/metrics").status_code == 401
    assert asked.get("/healthz").status_code == 401


# --- the page ---------------------------------------------------------------------------


def test_the_page_shows_what_there_is(store: MemoryStore) -> None:
    clock = Clock()
    studies = seen(store, clock)
    clock.now = 61.0
    studies.look()
    stats = figures(queued=1_234)
    stats["products"] = [product("layer_3<b>", 1_234)]
    page = client(watch(stats), studies).get("/").text
    assert "1,234" in page
    assert "layer_3&lt;b&gt;" in page
    assert "<script>alert" not in page
    assert "entrepot study rescue /mnt/shared spam --trial 5" in page


def test_the_best_point_is_one_to_read(store: MemoryStore) -> None:
    """All digits are in the API."""
    point = SPACE.point(lr=1 / 3)
    assert take(store, point, study="spam", trial=7, me="gpu-7", goal="min")
    report(store, point, [0.01], study="spam", trial=7, me="gpu-7", state="done")
    asked = client(watch(figures()), seen(store))
    assert "trial 7: <code>lr = 0.333333</code>" in asked.get("/").text
    best = asked.get("/api/v1/studies/spam").json()["best"][0]
    assert best["point"] == "lr=0.3333333333333333"


def test_the_page_of_a_study(store: MemoryStore) -> None:
    asked = client(watch(figures()), seen(store))
    page = asked.get("/studies", params={"name": "spam"}).text
    rows = re.findall(r'<th scope="row" class="n">(\d+)', page)
    assert rows == ["0", "1", "2", "3", "4", "5"]
    assert asked.get("/studies", params={"name": ODD}).status_code == 200
    absent = asked.get("/studies", params={"name": "<b>none"})
    assert (absent.status_code, "&lt;b&gt;none" in absent.text) == (404, True)


@pytest.mark.parametrize("path", ["/", "/studies?name=spam", "/docs"])
def test_nothing_comes_from_elsewhere(store: MemoryStore, path: str) -> None:
    answer = client(watch(figures()), seen(store)).get(path)
    for kind, target in re.findall(r'\b(src|href)="([^"]*)"', answer.text):
        assert target.startswith(("/", "#")), (kind, target)
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert " style=" not in answer.text, "the policy forbids it"


def test_before_anything_answered_it_says_so() -> None:
    page = client(watch(None, "it has not been asked yet")).get("/").text
    assert "does not answer" in page
    assert "No store is followed" in page


# --- watching ---------------------------------------------------------------------------


def test_watches_ask_again_and_end_when_they_are_told() -> None:
    asked: list[float] = []

    class Answers:
        def stats(self, timeout_s: float | None = None) -> dict[str, Any]:
            asked.append(timeout_s or 0.0)
            if len(asked) == 2:
                raise StoreError("a moment")
            return figures(queued=len(asked))

        def close(self) -> None:
            asked.append(-1.0)

    made = MarketWatch(Answers, every_s=0.01, timeout_s=1.5, keep_s=60.0)
    made.start()
    until(lambda: len(asked) >= 4)
    made.stop()
    assert asked[:4] == [1.5] * 4
    assert asked[-1] == -1.0
    assert made.seen.up
