"""The course that alerts and dashboards are judged by: load, faults, what mends them.

It is run once, for all tests, in a stack of its own. Faults that do not disturb each other are
brought about at once. Two Prometheus watch: the stack's, whose answers the dashboards show, and
``quick``, whose rules are those of rules.yml with every duration a thirtieth, but for two. What the
tests look at is noted on the way, so that the stack is gone before the first of them.
"""

from __future__ import annotations

import re
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.containers.faults import grafana
from tests.containers.faults.shortened import shortened
from tests.containers.stack import ROOT, START_S, Stack, docker, eventually, fetched, pause, unpause

RULES = ROOT / "observability" / "prometheus" / "rules.yml"
FACTOR = 30
SCRAPE_S = 1.0
"""Of the quick Prometheus. A busy machine's sidecar has answered by then."""

PATIENCE = {"SidecarDown": "10s", "BrokerDown": "5s"}
"""How long these hold before they fire, which is two questions and one without an answer in a
thirtieth of the time, and twelve and six in reality. A busy machine misses two."""

FIRES_S = 120.0
STOPS_S = 90.0

ALERTS = 'ALERTS{{alertstate="firing"{}}}'
MISSED = 'min_over_time(up{job="entrepot"}[4s]) == 0'

CORE = ("broker", "store", "store-init", "sidecar", "prometheus", "quick")
WELL = ("makes", "slow", "waits", "load")

Labels = dict[str, str]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """Labels, and values at moments in seconds since 1970."""

    labels: Labels
    points: Points


class Prometheus:
    """One that answers at a URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def now(self, expr: str, at: float | None = None) -> list[Series]:
        """As it is, or as it was at a moment."""
        moment = {} if at is None else {"time": at}
        return self._series("query", "value", query=expr, **moment)

    def over(self, expr: str, since: float, until: float, step_s: float) -> list[Series]:
        asked = {"start": since, "end": until, "step": step_s}
        return self._series("query_range", "values", query=expr, **asked)

    def values(self, selector: str, label: str) -> list[str]:
        """Of a label, in the series that the selector takes."""
        found: list[str] = self._data(f"label/{label}/values", **{"match[]": selector})
        return found

    def _series(self, path: str, key: str, **asked: object) -> list[Series]:
        found = []
        for each in self._data(path, **asked)["result"]:
            points = [each[key]] if key == "value" else each[key]
            found.append(Series(each["metric"], [(float(at), float(v)) for at, v in points]))
        return found

    def _data(self, path: str, **asked: object) -> Any:
        answer = fetched(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(asked)}")
        assert answer["status"] == "success", answer
        return answer["data"]


# --- what is noted ----------------------------------------------------------------------


@dataclass
class Fault:
    """One, by the alert that it fires. Moments are seconds since 1970, and 0 if they never came.

    :ivar labels: of the alert.
    :ivar brought: when it was brought about.
    :ivar fired: when the alert was seen to fire.
    :ivar mended: when it was mended.
    :ivar over: when the alert was seen to fire no more.
    """

    labels: Labels
    brought: float
    fired: float = 0.0
    mended: float = 0.0
    over: float = 0.0


@dataclass
class Course:
    """What was seen.

    :ivar faults: by the name of their alert.
    :ivar firing: every alert that fired, and when.
    :ivar shown: what each query of a panel was answered, by what was chosen in its variables.
    :ivar filled: what was found to choose from, by dashboard and variable.
    :ivar matched: how many series each selector of a rule found, in either Prometheus.
    :ivar metrics: what the sidecar told, as text.
    :ivar logs: what sidecar and store had to say meanwhile, for who looks for the cause of a fault
        that nobody brought about.
    """

    faults: dict[str, Fault] = field(default_factory=dict)
    firing: list[Series] = field(default_factory=list)
    shown: dict[str, dict[str, list[Series]]] = field(default_factory=dict)
    filled: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    matched: dict[str, tuple[int, int]] = field(default_factory=dict)
    metrics: str = ""
    logs: str = ""


def rules() -> list[dict[str, Any]]:
    said = yaml.safe_load(RULES.read_text())
    return [rule for group in said["groups"] for rule in group["rules"]]


def selectors(expr: str) -> list[str]:
    """Each metric that is asked for, with its matchers."""
    return re.findall(r"\b(?:entrepot_\w+|up)(?:\{[^}]*\})?", expr)


# --- the course -------------------------------------------------------------------------


class Watched(Stack):
    """The stack with what compose.yaml adds."""

    def __init__(self, project: str, quick: Path) -> None:
        super().__init__(project)
        mine = Path(__file__).with_name("compose.yaml").relative_to(ROOT)
        self._environment["COMPOSE_FILE"] = f"docker-compose.yml:{mine}"
        self._environment["QUICK_FOLDER"] = str(quick)

    def down(self) -> None:
        self.tried("kill")  # paused or stubborn, all the same
        super().down()

    def add(self, *services: str) -> None:
        """Start these, and look at nothing else."""
        self.compose("up", "--detach", "--no-build", "--no-deps", *services)

    def pause(self, *services: str) -> None:
        pause(*self.ids(services))

    def unpause(self, *services: str) -> None:
        unpause(*self.ids(services))

    def kill(self, *services: str) -> None:
        done = docker("kill", *self.ids(services))
        assert done.returncode == 0, done.stderr

    def ids(self, services: Sequence[str]) -> list[str]:
        """Of the container of each."""
        return [self.container(service)["Id"] for service in services]


def configure(folder: Path) -> None:
    """Rules and configuration of the quick Prometheus."""
    folder.chmod(0o755)
    config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
    pace = f"{round(SCRAPE_S * 1000)}ms"
    config["global"] = dict.fromkeys(config["global"], pace)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    short = yaml.safe_load(shortened(RULES.read_text(), FACTOR))
    for rule in (rule for group in short["groups"] for rule in group["rules"]):
        rule["for"] = PATIENCE.get(rule["alert"], rule["for"])
    (folder / RULES.name).write_text(yaml.safe_dump(short))


@contextmanager
def watched(project: str) -> Iterator[Watched]:
    with tempfile.TemporaryDirectory() as folder:
        configure(Path(folder))
        stack = Watched(project, Path(folder))
        try:
            stack.up(*CORE, *WELL)
            yield stack
        finally:
            stack.down()


class Run:
    """One course. What does not come about is left to the tests to find."""

    def __init__(self, stack: Watched) -> None:
        self.stack = stack
        self.course = Course()
        self.began = time.time()
        self.real = Prometheus(stack.url("prometheus", 9090))
        self.quick = Prometheus(stack.url("quick", 9090))

    def whole(self) -> Course:
        self.calm()
        self.first()
        self.second()
        self.third()
        every = self.quick.over(ALERTS.format(""), self.began, time.time(), SCRAPE_S)
        self.course.firing = every
        note_ranges(self.course, self.real, self.began)
        self.course.logs = self.stack.compose("logs", "--timestamps", "sidecar", "store")
        return self.course

    def calm(self) -> None:
        """All is well: what is ordered is made, and a study goes on."""
        self.seen('rate(entrepot_orders_total{outcome="fulfilled"}[5s]) > 1')
        self.seen('entrepot_study_trials{study="steady",state="pruned"} > 0')
        self.seen('entrepot_orders_in_flight{product="slow"} == 1')
        drain = ("entrepot", "drain", "--name", "slow", "--wait", "0")
        self.stack.compose("exec", "-T", "broker", *drain)
        self.seen('entrepot_suppliers{state="draining"} == 1')

    def first(self) -> None:
        """A client is killed and one is paused, each with a trial; a supplier is paused, one cannot
        make what it is asked for, one hangs for a while, and one is missing."""
        for alert in ("QueueGrowing", "OldestOrderTooOld", "NobodyServes", "OrdersFailing"):
            self.bring(alert)
        self.bring("TrialsAbandoned", study="killed")
        self.bring("StudyStalled", study="paused")
        self.stack.add("more", "breaks", "stuck", "killed", "paused")
        for study in ("killed", "paused"):
            self.seen(f'entrepot_study_trials{{study="{study}",state="running"}} == 1')
        self.stack.pause("makes", "paused")
        self.stack.kill("killed")
        # Before its trial counts as abandoned as well.
        self.await_fired("StudyStalled")
        self.stack.unpause("paused")
        self.await_over("StudyStalled")
        self.await_fired(*self.open_faults())
        # The stack's own looks more rarely; and what it missed is no answer.
        for each in (self.real, self.quick):
            eventually(partial(each.now, 'entrepot_study_trials{state="abandoned"} > 0'), bool)
        note_now(self.course, self.stack, self.real, self.quick)
        # What docs/runbook.md says.
        self.stack.add("mends", "rescue")
        self.stack.unpause("makes")
        self.stack.kill("breaks", "slow")
        self.stack.compose("stop", "--timeout", "5", "waits")
        self.await_over(*self.open_faults())

    def second(self) -> None:
        """Neither broker nor store is there."""
        self.bring("BrokerDown")
        self.bring("StoreErrors")
        self.stack.compose("stop", "--timeout", "5", "broker", "store")
        self.await_fired("BrokerDown", "StoreErrors")
        self.stack.compose("start", "broker", "store")
        self.await_over("BrokerDown", "StoreErrors")

    def third(self) -> None:
        """The sidecar hangs."""
        self.bring("SidecarDown")
        self.stack.pause("sidecar")
        self.await_fired("SidecarDown")
        self.stack.unpause("sidecar")
        self.await_over("SidecarDown")

    # --- its steps ----------------------------------------------------------------------

    def seen(self, expr: str) -> None:
        eventually(lambda: self.quick.now(expr), bool, START_S)

    def bring(self, alert: str, **labels: str) -> None:
        self.course.faults[alert] = Fault(labels, time.time())

    def open_faults(self) -> list[str]:
        return [alert for alert, fault in self.course.faults.items() if not fault.over]

    def fires(self, alert: str) -> bool:
        wanted = self.course.faults[alert].labels.items()
        found = self.quick.now(ALERTS.format(f',alertname="{alert}"'))
        return any(wanted <= each.labels.items() for each in found)

    def await_fired(self, *alerts: str) -> None:
        faults = {alert: self.course.faults[alert] for alert in alerts}
        give_up = time.monotonic() + FIRES_S
        while not all(fault.fired for fault in faults.values()) and time.monotonic() < give_up:
            time.sleep(SCRAPE_S)
            for alert, fault in faults.items():
                if not fault.fired and self.fires(alert):
                    fault.fired = time.time()

    def await_over(self, *alerts: str) -> None:
        faults = {alert: self.course.faults[alert] for alert in alerts}
        for fault in faults.values():
            fault.mended = time.time()
        give_up = time.monotonic() + STOPS_S
        while not all(fault.over for fault in faults.values()) and time.monotonic() < give_up:
            time.sleep(SCRAPE_S)
            if self.quick.now(MISSED):
                continue  # a scrape that failed ends alerts as well
            for alert, fault in faults.items():
                if not fault.over and not self.fires(alert):
                    fault.over = time.time()


# --- what panels show -------------------------------------------------------------------


def choices(course: Course, prometheus: Prometheus, file: str) -> Iterator[tuple[str, Labels]]:
    """Of each variable all; then, one variable after another, the last value that there is."""
    every = grafana.variables(file)
    of_all = {each.name: each.of_all for each in every}
    yield "all", of_all
    for each in every:
        found = prometheus.values(grafana.filled(each.selector, of_all), each.label)
        course.filled[file, each.name] = found
        for value in found[-1:]:
            yield f"{each.name}={value}", of_all | {each.name: grafana.escaped(value)}


def note_now(course: Course, stack: Stack, real: Prometheus, quick: Prometheus) -> None:
    """While the faults are there: what the figures of the dashboards show, and more."""
    at = time.time()
    for rule in rules():
        for selector in selectors(rule["expr"]):
            found = [len(each.now(selector, at)) for each in (real, quick)]
            course.matched[selector] = (found[0], found[1])
    for query, choice, values in asked(course, real):
        if query.instant:
            answer = real.now(grafana.filled(query.expr, values), at)
            course.shown.setdefault(str(query), {})[choice] = answer
    with urllib.request.urlopen(f"{stack.url('sidecar', 9555)}/metrics", timeout=10) as answer:
        course.metrics = answer.read().decode()


def note_ranges(course: Course, real: Prometheus, began: float) -> None:
    """In the end: what the lines of the dashboards show of the time since it began."""
    until = time.time()
    pace = grafana.pace(until - began)
    for query, choice, values in asked(course, real):
        if not query.instant:
            expr = grafana.filled(query.expr, values | pace.variables)
            answer = real.over(expr, began, until, pace.step_s)
            course.shown.setdefault(str(query), {})[choice] = answer


def asked(course: Course, real: Prometheus) -> Iterator[tuple[grafana.Query, str, Labels]]:
    """Each query with each choice, and the values of its variables."""
    for file in grafana.FILES:
        mine = [each for each in grafana.queries() if f"{each.dashboard}.json" == file]
        for choice, values in choices(course, real, file):
            yield from ((query, choice, values) for query in mine)
