"""The dashboard *Studies*: trials, how they do, and the store that they are in."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import units

from observability.grafana.panels import (
    EVERYWHERE,
    NONE_IS_GOOD,
    answers,
    graph,
    happened,
    number,
    of,
    of_study,
    page,
    percentiles,
    rate,
    variable,
)

# What the alerts of prometheus/rules.yml compare with.
SILENT_S = 900
ERRORS = 5

OUTCOME_ERROR = 'outcome="error"'
RUNNING = 'state="running"'
ABANDONED = 'state="abandoned"'
FINISHED = 'state=~"done|pruned|failed"'
TRIAL_STATES = {
    "running": "blue",
    "done": "green",
    "pruned": "yellow",
    "failed": "red",
    "released": "purple",
    "abandoned": "dark-red",
}


def studies() -> board.Dashboard:
    """Trials, and the store that they are in."""
    age = of_study("study_last_write_age_seconds")
    at_work = f"{of_study('study_trials', RUNNING)} > 0"
    # A gauge: trials that are run again leave their state, which rate() would take for a restart.
    finished = f"deriv({of_study('study_trials', FINISHED)}[5m])"
    asked = "sidecar_store_requests_total"
    now = [
        answers(
            "Store",
            "Whether the store could be read at the last look. Alert: StoreErrors.",
            "store_up",
        ),
        number("Studies", "Studies in the store.", units.Short, f"sum({of('studies')})"),
        number(
            "Running",
            "Trials that somebody runs.",
            units.Short,
            f"sum({of_study('study_trials', RUNNING)})",
        ),
        number(
            "Finished",
            "Trials that are done, pruned or failed.",
            units.Short,
            f"sum({of_study('study_trials', FINISHED)})",
        ),
        number(
            "Abandoned",
            "Trials whose records nobody wrote for long, while the sidecar watched. Their machines "
            "died or are cut off. Alert: TrialsAbandoned.",
            units.Short,
            f"sum({of_study('study_trials', ABANDONED)})",
            NONE_IS_GOOD,
        ),
        number(
            "Last write",
            "Since a record of any of these studies was written last, by the sidecar's clock.",
            units.Seconds,
            f"min({age})",
        ),
        number(
            "Silent for",
            "Of the studies with running trials, the one that was silent for longest; none if none "
            "has. Alert: StudyStalled.",
            units.Seconds,
            f"max({age} and on (namespace, job, instance, study) {at_work})",
            [(None, "green"), (SILENT_S / 2, "orange"), (SILENT_S, "red")],
        ),
        number(
            "Without series",
            "Studies beyond those that have series of their own, which are those written last. "
            "They are not in any other panel.",
            units.Short,
            f"sum({of('studies_without_series')})",
            [(None, "green"), (1, "orange")],
        ),
    ]
    trials = [
        graph(
            "Trials by state",
            "An abandoned trial is not among the running.",
            units.Short,
            [(f"sum by (state) ({of_study('study_trials')})", "{{state}}")],
            stacked=True,
            colors=TRIAL_STATES,
        ),
        graph(
            "Throughput",
            "Trials that become done, pruned or failed, a minute, over five minutes. Below zero: "
            "trials are run again, or a study was deleted.",
            units.CountsPerMinute,
            [(f"60 * sum by (study) ({finished})", "{{study}}")],
            from_zero=False,
        ),
        graph(
            "Best score",
            "The best that a trial reached; of several goals, each one's best.",
            units.NoUnit,
            [(of_study("study_best_score"), "{{study}} {{goal}}")],
            from_zero=False,
        ),
        graph(
            "Silence of studies at work",
            "Since a record was written last, of studies with running trials. Alert: StudyStalled.",
            units.Seconds,
            [(f"{age} and on (namespace, job, instance, study) {at_work}", "{{study}}")],
            steps=[(None, "transparent"), (SILENT_S, "red")],
        ),
        graph(
            "Abandoned by study",
            "Trials to rescue, with `entrepot study rescue STORE STUDY`. Alert: TrialsAbandoned.",
            units.Short,
            [(f"sum by (study) ({of_study('study_trials', ABANDONED)})", "{{study}}")],
            steps=[(None, "transparent"), (1, "red")],
            span=24,
        ),
    ]
    store = [
        graph(
            "Latency of the store",
            "Until the store had answered the sidecar, by what it was asked. `changes` is a look "
            "at all that is new, so it may be many requests.",
            units.Seconds,
            percentiles("sidecar_store_request_seconds", "op"),
        ),
        graph(
            "Asked of the store",
            "What the sidecar asked, a second, by what came of it.",
            units.CountsPerSecond,
            [(f"sum by (op, outcome) ({rate(of(asked))})", "{{op}} {{outcome}}")],
        ),
        graph(
            "Errors of the store",
            "What the sidecar asked and the store did not answer, in the last two minutes. Alert: "
            "StoreErrors.",
            units.Short,
            [(f"sum by (op) (increase({of(asked, OUTCOME_ERROR)}[2m]))", "{{op}}")],
            steps=[(None, "transparent"), (ERRORS, "red")],
        ),
        graph(
            "Records skipped",
            "Records that could not be read, by what is wrong with them, since the sidecar began. "
            "A reason has no line before its first.",
            units.Short,
            [(happened("records_skipped_total"), "{{reason}}")],
            steps=[(None, "transparent"), (1, "orange")],
        ),
    ]
    named = f"label_values(entrepot_study_trials{{{EVERYWHERE}}}, study)"
    return page(
        "Entrepot: Studies",
        "entrepot-studies",
        "Trials, how they do, and the store that they are in. Alerts and what to do: "
        "docs/runbook.md.",
        "now-6h",
        {"Now": now, "Trials": trials, "Store": store},
        [variable("study", "Study", named, multi=True)],
    )
