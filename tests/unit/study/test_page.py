"""A study as a page: what is on it, that nothing leaves it, and how large it gets."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from entrepot.errors import ConfigurationError
from entrepot.store import Store
from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study
from entrepot.study.charts import history
from entrepot.study.drawn import Curve
from entrepot.study.page import CURVES, page, study_page, with_curves
from entrepot.study.table import table
from entrepot.study.trials import Attempt
from tests.unit.study.test_table import attempt

VOID = {"meta", "link", "path", "rect", "br"}

NASTY = "<script>alert(1)</script>"
NASTIER = "\"'><img src=http://evil/x onerror=alert(1)>\x1b[2J\u202e</title></style>"


class Page(HTMLParser):
    """What a browser makes of a page; one whose elements do not close is refused."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    def paths(self, kind: str) -> list[str]:
        """The drawings of a class."""
        return [str(one["d"]) for one in self.all("path") if (one.get("class") or "") == kind]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text_of("script")[0])
        return found


def made(
    attempts: Iterable[Attempt], told: dict[int, Curve] | None = None, name: str = "spam"
) -> Page:
    return Page(page(name, "/mnt/shared", table(attempts), told or {}, 0.0))


def loud(trial: int, score: float, point: str = "lr=0.1", state: str = "done") -> Attempt:
    return attempt(trial, state, score, point, tail="2:1.0:2.0,1.0")


# --- nothing leaves it ------------------------------------------------------------------


def test_a_page_asks_for_nothing_and_runs_nothing_but_its_own() -> None:
    text = page("spam", "s3://bucket", table([loud(0, 0.5)]), {0: [(1, 2.0), (2, 1.0)]}, 0.0)
    found = Page(text)
    for _, attrs in found.elements:
        assert not {"src", "style", "onclick", "srcset", "data"} & attrs.keys()
        assert attrs.get("href", "data:,") == "data:,"
    assert "url(" not in text
    assert "@import" not in text
    assert "http:" not in text
    assert "https:" not in text
    policy = str(found.all("meta")[1]["content"])
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for tag, content in (
        ("style", found.text_of("style")[0]),
        ("script", found.text_of("script")[1]),
    ):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("name", [NASTY, NASTIER])
def test_whatever_is_in_a_study_is_text(name: str) -> None:
    store = MemoryStore()
    space = Space().choice(name, [name, "b", "</script>"]).real(f"x{name}", 0, 1)
    study = Study(store, "spam", space, Sampler.random(0))
    for trial in study.work(trials=6):
        with trial:
            trial.report(1.0)
            trial.report(0.5)
            if trial.number == 3:
                trial.prune(name)
    for record in store.scan("spam/trial/"):  # past the rule for who runs a trial
        store.bind(record.name, record.digest, {**record.meta, "who": name})
    text = study_page(store, name, study.table(), at=0.0)
    found = Page(text)
    tags = {tag for tag, _ in found.elements}
    assert "img" not in tags
    assert len(found.all("script")) == 2
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert NASTY not in text
    heading = "".join(found.text_of("h1"))
    assert heading.startswith(name[:20])
    assert {int(trial) for trial in found.data["trials"]} == set(range(6))


def test_a_page_says_when_and_where() -> None:
    found = made([loud(0, 0.5)])
    assert any("as it was on 1970-01-01 00:00 UTC" in text for text in found.text_of("p"))
    assert found.text_of("title")[0] == "spam: study"
    assert "prefers-color-scheme: dark" in found.text_of("style")[0]
    assert found.all("meta")[2]["name"] == "viewport"


# --- what is on it ----------------------------------------------------------------------


def test_history_has_every_score_and_the_best_so_far() -> None:
    scores = [0.5, 0.7, 0.3, 0.4, 0.2]
    attempts = [loud(n, score) for n, score in enumerate(scores)]
    found = made([*attempts, loud(5, 0.9, state="pruned"), attempt(6, "running")])
    assert found.paths("dot done")[0].count("M") == 5
    assert found.paths("dot pruned")[0].count("M") == 1
    (line,) = found.paths("sofar")
    assert line == "M0 571H400V857H800V1000H1000"
    assert [mark[2] for mark in found.data["marks"]["history score"]] == [0, 1, 2, 3, 4, 5]


def test_of_many_trials_the_best_so_far_are_drawn_always() -> None:
    scores = [1000.0 - n if n in (7, 31, 32, 77) else 2000.0 for n in range(100)]
    rows = table([loud(n, score) for n, score in enumerate(scores)]).rows
    _, marks = history(rows, "score", "min", most=12)
    drawn = {trial for _, _, trial in marks["history score"]}
    assert {0, 7, 31, 32, 77, 99} <= drawn
    assert len(drawn) <= 12


def test_the_goal_decides_what_the_best_so_far_is() -> None:
    up = made([attempt(n, score=score, goal="max") for n, score in enumerate((1.0, 3.0, 2.0))])
    down = made([attempt(n, score=score) for n, score in enumerate((1.0, 3.0, 2.0))])
    assert up.paths("sofar") == ["M0 1000H500V0H1000V0H1000"]
    assert down.paths("sofar") == ["M0 1000H1000V1000H1000"]
    assert made([attempt(0, score=1.0, goal=None)]).paths("sofar") == []


def test_a_few_scores_that_are_far_off_do_not_flatten_the_others() -> None:
    scores = [1 + n / 100 for n in range(99)] + [1e12]
    marks = made([loud(n, one) for n, one in enumerate(scores)]).data["marks"]["history score"]
    assert len({y for _, y, _ in marks}) > 90
    assert marks[-1][1] == 0, "it lies on the edge"


def test_only_what_is_done_is_in_the_parallel_coordinates() -> None:
    point = "lr=0.1,opt=adam"
    found = made([loud(0, 0.5, point), loud(1, 0.4, point, "pruned"), loud(2, 0.6, point)])
    lines = [one for one in found.all("path") if "data-t" in one]
    assert sorted((one["data-t"], one["class"]) for one in lines) == [
        ("0", "curve g0"),
        ("2", "curve g2"),
    ]


def test_the_goal_turns_the_colours_of_the_parallel_coordinates() -> None:
    for goal, best in (("min", "0"), ("max", "9")):
        attempts = [attempt(n, score=float(n), point=f"a={n}", goal=goal) for n in range(10)]
        lines = [one for one in made(attempts).all("path") if one.get("class") == "curve g0"]
        assert [one["data-t"] for one in lines] == [best]


def test_an_axis_of_the_parallel_coordinates_is_logarithmic_where_it_is_wide() -> None:
    def middle(values: tuple[float, ...]) -> int:
        attempts = [attempt(n, score=1.0 + n, point=f"a={v}") for n, v in enumerate(values)]
        lines = {one["data-t"]: one["d"] for one in made(attempts).all("path") if "data-t" in one}
        return int(str(lines["1"]).split("C")[0].split()[1])

    assert middle((0.001, 0.01, 0.1)) == 500
    assert middle((0.1, 0.2, 0.3)) == 500
    assert middle((0.01, 0.1, 0.4)) > 700, "40 times is not wide"


def test_a_knob_that_a_trial_has_not_got_has_a_place_of_its_own() -> None:
    attempts = [attempt(0, score=1.0, point="opt=sgd,m=0.9"), attempt(1, score=2.0, point="opt=a")]
    found = made(attempts)
    assert "unset" in found.text_of("text")
    (line,) = [str(one["d"]) for one in found.all("path") if one.get("data-t") == "1"]
    assert " 500 1000C" in line, "below the axis"


def test_curves_have_gaps_where_they_are_not_finite() -> None:
    told: dict[int, Curve] = {
        0: [(1, 4.0), (2, math.nan), (3, 2.0), (4, 1.0)],
        1: [(1, math.inf), (2, math.nan)],
    }
    found = made([loud(0, 1.0), loud(1, 2.0, state="failed")], told)
    curve = next(one for one in found.all("path") if one.get("class") == "curve front")
    assert curve["d"] == "M0 0M667 667L1000 1000"
    assert next(one for one in found.all("path") if one.get("class") == "curve failed")["d"] == ""


def test_what_decides_is_a_bar_a_knob() -> None:
    attempts = [attempt(n, score=float(n), point=f"lr={n},b=1") for n in range(5)]
    shares = [one["width"] for one in made(attempts).all("rect") if one.get("class") == "share"]
    assert shares == ["100.0%", "0.0%"]


def test_several_goals_have_a_history_each_and_a_front() -> None:
    goal = {"loss": "min", "hits": "max"}
    attempts = [
        attempt(n, score={"loss": n, "hits": n % 3}, goal=goal, point=f"a={n}") for n in range(6)
    ]
    found = made(attempts)
    titles = found.text_of("h2")
    assert titles[:3] == ["History of loss", "History of hits", "Pareto front"]
    assert found.paths("dot front")[0].count("M") == 3
    assert found.data["marks"].keys() == {"history loss", "history hits", "front"}


@pytest.mark.parametrize(
    "attempts",
    [
        [],
        [attempt(0, "running")],
        [attempt(0, "failed", point="free text")],
        [attempt(0, score=0.5, point="")],
        [attempt(0, score=0.5, goal=None)],
        [attempt(0, "pruned", math.nan)],
        [attempt(0, score=1.7e308), attempt(1, score=-1.7e308)],
        [attempt(0, score=5e-324, point=f"a={2**50}"), attempt(1, score=0.0, point="a=-1e300")],
    ],
)
def test_a_study_with_little_in_it_has_a_page(attempts: list[Attempt]) -> None:
    text = page("spam", "/x", table(attempts), {}, 0.0)
    Page(text)
    assert "nan" not in re.sub(r"<script.*", "", text, flags=re.DOTALL).lower().replace(
        "<td>nan</td>", ""
    )


def test_the_table_has_the_best_first_and_why_others_ended() -> None:
    found = made([loud(0, 0.5), loud(1, 0.25), attempt(2, "failed", because="no GPU")])
    cells = found.text_of("td")
    assert [cell for cell in cells if cell in ("0.25", "0.5", "no GPU")] == [
        "0.25",
        "0.5",
        "no GPU",
    ]


# --- how large --------------------------------------------------------------------------


def many(count: int, wide: bool = False) -> list[Attempt]:
    draw = random.Random(0)
    word = '<&"\N{SNOWMAN}' * 12
    knobs = "".join(f",{'%3C' * 20}{n}={draw.random()!r}" for n in range(1000)) if wide else ""
    return [
        attempt(
            n,
            "done" if n % 7 else "pruned",
            1e6 - n + draw.random(),
            f"lr={draw.random()!r},opt={draw.choice(['adam', 'sgd'])}{knobs}",
            tail="24:0.5:" + ",".join(["0.5"] * 24),
            who=word,
            because=word if n % 7 == 0 else "",
        )
        for n in range(count)
    ]


def test_a_page_of_100_000_trials_is_below_2_megabytes() -> None:
    found = table(many(100_000))
    chosen = with_curves(found)
    assert 0 < len(chosen) <= CURVES
    assert found.rows[0] in chosen
    told: dict[int, Curve] = {
        row.trial: [(n, 1 / n) for n in range(1, 5000)] for row in chosen[:20]
    }
    text = page("spam", "/x", found, told, 0.0)
    assert len(text.encode()) < 2_000_000
    marks = Page(text).data["marks"]["history score"]
    assert marks[-1][2] == 99_999
    assert len(marks) <= 2_000


def test_a_page_of_1000_knobs_with_long_names_is_below_2_megabytes() -> None:
    text = page("spam" * 50, "/x", table(many(300, wide=True)), {}, 0.0)
    assert len(text.encode()) < 2_000_000
    Page(text)


# --- where it goes ----------------------------------------------------------------------


def test_a_study_is_plotted_to_a_file(tmp_path: Path) -> None:
    with Store(tmp_path / "store", durable=False) as store:
        study = Study(store, "spam", Space().real("lr", 0, 1), Sampler.sobol(0))
        for trial in study.work(trials=3):
            with trial:
                for n in range(900):
                    trial.reports.append(1 / (n + 1))
                trial.report(0.001)
        path = study.plot(tmp_path / "history.html")
        assert path == tmp_path / "history.html"
        first = path.read_text()
        assert len(Page(first).paths("curve done")) == 2
        with pytest.raises(ConfigurationError, match="cannot write"):
            study.plot(tmp_path / "none" / "history.html")
        assert sorted(each.name for each in tmp_path.iterdir()) == ["history.html", "store"]
        for blob in (tmp_path / "store" / "blobs").rglob("*"):
            if blob.is_file():
                blob.write_bytes(b"other")
        study.plot(path)
        assert len(Page(path.read_text()).paths("curve done")) == 2, "drawn from the records"
