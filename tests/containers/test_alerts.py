"""Each alert fires for its fault in the running stack, and no longer once that is mended.

Faults are real: containers that are killed, paused, stopped, or asked for what they cannot do. The
durations of the rules are a thirtieth of the real ones, but for two; see faults/course.py.
"""

from __future__ import annotations

import re

import pytest
import yaml

from tests.containers.faults.course import FACTOR, RULES, Course, rules, selectors
from tests.containers.faults.shortened import shortened

pytestmark = pytest.mark.timeout(600)

NAMES = [str(rule["alert"]) for rule in rules()]


@pytest.mark.parametrize("alert", NAMES)
def test_its_selectors_find_series(course: Course, alert: str) -> None:
    (rule,) = [each for each in rules() if each["alert"] == alert]
    found = selectors(rule["expr"])
    assert found
    for selector in found:
        assert all(count > 0 for count in course.matched[selector]), selector


@pytest.mark.parametrize("alert", NAMES)
def test_it_fires_for_its_fault_and_not_before(course: Course, alert: str) -> None:
    fault = course.faults[alert]
    moments = [
        at
        for series in course.firing
        if series.labels["alertname"] == alert and fault.labels.items() <= series.labels.items()
        for at, _ in series.points
    ]
    assert fault.fired, "it did not fire"
    assert min(moments) > fault.brought, f"it fired when nothing was wrong; {course.logs}"


@pytest.mark.parametrize("alert", NAMES)
def test_it_stops_when_the_fault_is_mended(course: Course, alert: str) -> None:
    fault = course.faults[alert]
    assert fault.mended > fault.fired > 0, "it did not fire"
    assert fault.over, "it did not stop"


# --- the rules that are watched ---------------------------------------------------------


def test_only_durations_are_shortened_and_all_of_them() -> None:
    real, short = RULES.read_text(), shortened(RULES.read_text(), FACTOR)
    groups = yaml.safe_load(short)["groups"]
    assert [rule["alert"] for group in groups for rule in group["rules"]] == NAMES
    duration = re.compile(r"\b(\d+)(ms|s|m)\b|(?<=_seconds > )(\d+)\b")
    assert duration.sub("", real) == duration.sub("", short)
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
    seconds = [
        [int(found[1] or found[3]) * units[found[2]] for found in duration.finditer(text)]
        for text in (real, short)
    ]
    assert len(seconds[0]) > len(NAMES), "each has a `for`"
    assert seconds[1] == pytest.approx([each / FACTOR for each in seconds[0]])
