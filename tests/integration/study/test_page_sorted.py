"""The table of a study's page in a real browser: sorted by any column, by hand, by keys, by ear."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from entrepot.store.memory import MemoryStore
from entrepot.study import Sampler, Space, Study
from entrepot.study.page import study_page
from tests.integration.test_sidecar_page import browser

__all__ = ["browser"]  # a fixture

SPACE = Space().real("lr", 1e-6, 1.0, log=True).choice("opt", ["sgd", "Adam", "lion"])
SCORES = [0.5, 0.1234567, 0.1234566, math.nan, 12.0, -3.0, math.inf, 1e-9]
PICTURES = os.environ.get("ENTREPOT_TEST_PICTURES")
"""A folder for pictures, for whoever wants to look."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = Study(MemoryStore(), "spam", SPACE, Sampler.random(0), me="m", goal="min")
    for trial in study.work(trials=len(SCORES)):
        with trial:
            trial.report(SCORES[trial.number])
    path = tmp_path_factory.mktemp("page") / "study.html"
    path.write_text(study_page(study.store, "spam", study.table(), at=0.0))
    return path


@pytest.fixture(params=[1280, 390])
def page(request: pytest.FixtureRequest, browser: Browser, file: Path) -> Iterator[Page]:
    faults: list[str] = []
    made = browser.new_page(viewport={"width": request.param, "height": 900})
    made.on("console", lambda said: faults.append(said.text))
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.goto(file.as_uri())
    yield made
    made.close()
    assert faults == []


def column(page: Page, name: str) -> list[str]:
    return page.evaluate(  # type: ignore[no-any-return]
        """name => {
            const table = document.querySelector("table.trials");
            const at = [...table.tHead.rows[0].cells].findIndex(th => th.textContent === name);
            return [...table.tBodies[0].rows].map(row => row.cells[at].textContent);
        }""",
        name,
    )


def orders(page: Page) -> dict[str, str]:
    """What a screen reader is told of each heading that has an order."""
    return page.evaluate(  # type: ignore[no-any-return]
        """() => Object.fromEntries([...document.querySelectorAll("th[aria-sort]")]
            .map(th => [th.textContent, th.getAttribute("aria-sort")]))"""
    )


def test_a_heading_sorts_by_all_digits_and_what_is_no_number_comes_last(page: Page) -> None:
    as_it_came = column(page, "trial")
    assert as_it_came[0] == "5"
    assert orders(page) == {}
    heading = page.get_by_role("button", name="score")
    heading.click()
    assert column(page, "trial")[:6] == ["5", "7", "2", "1", "0", "4"]  # 2 and 1 look the same
    assert column(page, "score")[-2:] == ["inf", "nan"]
    assert orders(page) == {"score": "ascending"}
    assert page.get_by_role("status").inner_text() == "sorted by score, lowest first"
    heading.click()
    assert column(page, "trial")[:7] == ["6", "4", "0", "1", "2", "7", "5"]
    assert column(page, "score")[-1] == "nan"
    assert orders(page) == {"score": "descending"}
    heading.click()
    assert column(page, "trial") == as_it_came
    assert orders(page) == {}
    assert page.get_by_role("status").inner_text() == "in the order it came in"


def test_words_are_sorted_as_in_a_dictionary_and_equals_keep_their_order(page: Page) -> None:
    trials = column(page, "trial")
    of_trial = dict(zip(trials, column(page, "opt"), strict=True))
    page.get_by_role("button", name="opt").click()
    wanted = sorted(trials, key=lambda trial: of_trial[trial].lower())
    assert column(page, "trial") == wanted
    assert {"Adam", "lion", "sgd"} >= set(of_trial.values())
    page.get_by_role("button", name="trial").click()
    assert column(page, "trial") == [str(number) for number in range(len(SCORES))]
    assert orders(page) == {"trial": "ascending"}


def test_keys_alone_are_enough_and_stay_where_they_were(page: Page) -> None:
    page.get_by_role("button", name="lr").focus()
    page.keyboard.press("Enter")
    rising = [float(one) for one in column(page, "lr")]
    assert rising == sorted(rising)
    page.keyboard.press("Space")
    assert [float(one) for one in column(page, "lr")] == rising[::-1]
    assert page.evaluate("document.activeElement.textContent") == "lr"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "opt"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_in_the_way_of_who_does_not_see_it(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    heading = page.get_by_role("button", name="score")
    heading.click()
    heading.focus()
    found = Axe().run(page, context="section.card")
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if PICTURES:
        size = page.viewport_size
        assert size is not None
        picture = Path(PICTURES) / f"sorted-{scheme}-{size['width']}.png"
        picture.write_bytes(page.locator("section.card", has_text="Trials").screenshot())


def test_without_scripts_the_table_is_as_it_was(browser: Browser, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    heads = page.locator("table.trials th")
    assert [head.strip() for head in heads.all_inner_texts()][:3] == ["trial", "state", "score"]
    assert page.locator("table.trials button").count() == 0
    assert page.locator("table.trials tbody tr").count() == len(SCORES)
    assert page.locator("table.trials tbody td").first.inner_text() == "5"
    context.close()
