"""The charts of a study's page, as HTML and SVG. Pure.

A chart is as wide as the page: inside its frame a drawing of 1,000 by 1,000 is stretched over the
area, with strokes that are not stretched, and texts stand beside it in a size of their own. A dot
is a stroke of no length with a round end, so that thousands of them are one path.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from entrepot.study.curves import best_so_far
from entrepot.study.drawn import Curve
from entrepot.study.goals import Direction
from entrepot.study.scales import Scale, scale_of, thinned
from entrepot.study.table import Row
from entrepot.study.trials import DONE, FAILED, PRUNED

DOTS = 1_500
"""Trials that are drawn, in all histories together."""

LINE_POINTS = 300
CURVE_POINTS = 80
BARS = 20

HEIGHT = 240
"""Pixels of a chart's area, without what stands around it."""

TOP = 10
BOTTOM = 26
LEFT = 58

Marks = list[tuple[int, int, int]]
"""Where on the drawing what can be pointed at lies, and which trial that is."""


def escaped(text: object, most: int = 200) -> str:
    """Text for HTML: nothing in it is markup or moves a cursor, and it is not too long."""
    said = "".join(
        sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in str(text)
    )
    return html.escape(said if len(said) <= most else said[: most - 1] + "…", quote=True)


# --- history ----------------------------------------------------------------------------


def history(
    rows: Sequence[Row], score: str, goal: Direction | None, most: int = DOTS
) -> tuple[str, dict[str, Marks]]:
    """Scores by their trials, ``most`` of them or a few more, and the best so far."""
    scored = sorted((row for row in rows if score in row.scores), key=lambda row: row.trial)
    scored = [row for row in scored if math.isfinite(row.scores[score])]
    if not scored:
        return nothing("History", "No trial has a score yet."), {}
    x = Scale(0.0, float(max(1, scored[-1].trial)), False)
    y = _robust([row.scores[score] for row in scored], goal)
    line = _so_far([row for row in scored if row.state == DONE], score, goal)
    kept = {row.trial for row, _ in line}
    kept |= {row.trial for row in thinned(scored, max(2, most - len(kept)))}
    marks: Marks = []
    dots: dict[str, list[str]] = {}
    for row in scored:
        if row.trial in kept:
            at = place_of(x.at(row.trial)), place_of(1 - y.at(row.scores[score]))
            marks.append((*at, row.trial))
            dots.setdefault(row.state, []).append(f"M{at[0]} {at[1]}h0")
    drawn = [
        f'<path class="dot {state}" d="{"".join(dots[state])}"/>'
        for state in (FAILED, PRUNED, DONE)
        if state in dots
    ]
    legend = [(state, state) for state in (DONE, PRUNED, FAILED) if state in dots]
    if line:
        drawn.insert(0, f'<path class="sofar" d="{_steps(line, x, y)}"/>')
        legend.append(("sofar", "best so far"))
    title = "History" if score == "score" else f"History of {escaped(score, 40)}"
    better = {"min": "; less is better", "max": "; more is better"}.get(goal or "", "")
    note = f"{len(scored):,} trials that have a score{better}"
    if len(marks) < len(scored):
        note += f"; {len(marks):,} are drawn"
    return (
        frame(title, note, "".join(drawn), y, x, "trial", "points", f"history {score}", legend),
        {f"history {score}": marks},
    )


def _so_far(done: Sequence[Row], score: str, goal: Direction | None) -> list[tuple[Row, float]]:
    """The trials that were better than all before, and the last."""
    if goal is None or not done:
        return []
    best = best_so_far([row.scores[score] for row in done], goal)
    better = [
        (row, one)
        for place, (row, one) in enumerate(zip(done, best, strict=True))
        if place in (0, len(done) - 1) or one != best[place - 1]
    ]
    return thinned(better, LINE_POINTS)


def _steps(line: Sequence[tuple[Row, float]], x: Scale, y: Scale) -> str:
    first, *others = line
    said = f"M{place_of(x.at(first[0].trial))} {place_of(1 - y.at(first[1]))}"
    for row, best in others:
        said += f"H{place_of(x.at(row.trial))}V{place_of(1 - y.at(best))}"
    return f"{said}H1000"


def scatter(rows: Sequence[Row], scores: Sequence[str]) -> tuple[str, dict[str, Marks]]:
    """Two scores of what is done, with the Pareto front."""
    across, up = scores[:2]
    done = [row for row in rows if row.state == DONE and across in row.scores and up in row.scores]
    if not done:
        return nothing("Pareto front", "No trial is done yet."), {}
    x = scale_of(row.scores[across] for row in done)
    y = scale_of(row.scores[up] for row in done)
    best = [row for row in done if row.best]
    others = [row for row in done if not row.best]
    marks: Marks = []
    drawn = []
    for kind, some in (("done", thinned(others, DOTS // 2)), ("front", thinned(best, DOTS // 2))):
        dots = []
        for row in some:
            at = place_of(x.at(row.scores[across])), place_of(1 - y.at(row.scores[up]))
            marks.append((*at, row.trial))
            dots.append(f"M{at[0]} {at[1]}h0")
        drawn.append(f'<path class="dot {kind}" d="{"".join(dots)}"/>')
    legend = [("done", "done"), ("front", "no other beats it in all")]
    note = f"{len(best):,} of {len(done):,} that are done"
    page = frame(
        "Pareto front", note, "".join(drawn), y, x, across, "points", "front", legend, up=up
    )
    return page, {"front": marks}


# --- curves -----------------------------------------------------------------------------


def curves(rows: Sequence[Row], found: Mapping[int, Curve]) -> str:
    """What trials reported, report by report, the best on top; nothing where none did twice."""
    told = [row for row in rows if len(found.get(row.trial, ())) > 1]
    if not told:
        return ""
    values = [value for row in told for _, value in found[row.trial]]
    longest = max(found[row.trial][-1][0] for row in told)
    x = Scale(1.0, float(max(2, longest)), False)
    y = _robust(values, None)
    drawn = []
    for row in reversed(told):
        path = _broken(thinned(found[row.trial], CURVE_POINTS), x, y)
        kind = "front" if row.best else row.state
        drawn.append(f'<path class="curve {kind}" data-t="{row.trial}" d="{path}"/>')
    states = dict.fromkeys(row.state for row in told if not row.best)
    legend = [(state, state) for state in states]
    if any(row.best for row in told):
        legend.append(("front", "best"))
    note = f"{len(told):,} trials, by the number of the report"
    return frame("Curves", note, "".join(drawn), y, x, "report", "lines", "curves", legend)


def _broken(curve: Curve, x: Scale, y: Scale) -> str:
    """A path that has a gap where the curve is not finite."""
    said, pen = [], "M"
    for at, value in curve:
        if not math.isfinite(value):
            pen = "M"
            continue
        said.append(f"{pen}{place_of(x.at(at))} {place_of(1 - y.at(value))}")
        pen = "L"
    only = len(said) == 1 or all(one[0] == "M" for one in said)
    return "h0".join(said) + "h0" if only and said else "".join(said)


# --- importance -------------------------------------------------------------------------


def importance(found: Mapping[str, float], score: str) -> str:
    """A bar a knob."""
    title = "What decides" if score == "score" else f"What decides {escaped(score, 40)}"
    if not any(found.values()):
        return nothing(title, "Nothing that is known of yet: it takes trials that differ.")
    rows = []
    for knob, share in list(found.items())[:BARS]:
        rows.append(
            f'<div class="bar"><span class="name" title="{escaped(knob)}">{escaped(knob, 60)}'
            f'</span><svg height="14" width="100%" aria-hidden="true"><rect class="track" '
            f'width="100%" height="14" rx="3"/><rect class="share" width="{100 * share:.1f}%" '
            f'height="14" rx="3"/></svg><span class="number">{share:.2f}</span></div>'
        )
    more = f"; {len(found) - BARS:,} more have less" if len(found) > BARS else ""
    return (
        f'<figure class="card"><figcaption><h2>{title}</h2><p>|rank correlation| with the score, '
        f"over trials that are done{more}</p></figcaption>{''.join(rows)}</figure>"
    )


# --- frames -----------------------------------------------------------------------------


def frame(
    title: str,
    note: str,
    drawn: str,
    y: Scale,
    x: Scale,
    across: str,
    kind: str,
    name: str,
    legend: Sequence[tuple[str, str]],
    *,
    up: str = "",
) -> str:
    """A drawing with its axes."""
    lines, left, below = [], [], []
    for share, said in y.ticks():
        lines.append(f'<path class="grid" d="M0 {place_of(1 - share)}H1000"/>')
        at = TOP + (1 - share) * HEIGHT
        left.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{said}</text>')
    for share, said in x.ticks():
        anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
        below.append(
            f'<text x="{100 * share:.2f}%" y="{TOP + HEIGHT + 18}" text-anchor="{anchor}">'
            f"{said}</text>"
        )
    height = TOP + HEIGHT + BOTTOM
    names = f"{escaped(up, 40)} by {escaped(across, 40)}" if up else f"by {escaped(across, 40)}"
    return (
        f'<figure class="card"><figcaption><h2>{title}</h2><p>{note}</p>{legend_of(legend)}'
        f'</figcaption><div class="frame"><svg width="{LEFT}" height="{height}" '
        f'aria-hidden="true">{"".join(left)}</svg><svg class="area" data-kind="{kind}" '
        f'data-name="{escaped(name)}" width="100%" height="{height}" role="img" '
        f'aria-label="{title}, {names}">'
        f'<svg class="plot" y="{TOP}" width="100%" height="{HEIGHT}" viewBox="0 0 1000 1000" '
        f'preserveAspectRatio="none">{"".join(lines)}{drawn}<path class="ring" d=""/></svg>'
        f'{"".join(below)}</svg></div><p class="across">{names}</p></figure>'
    )


def nothing(title: str, why: str) -> str:
    """In the place of a chart that has nothing to show."""
    return (
        f'<figure class="card"><figcaption><h2>{title}</h2></figcaption>'
        f'<p class="nothing">{why}</p></figure>'
    )


def legend_of(kinds: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li class="{kind}">{escaped(said, 40)}</li>' for kind, said in kinds)
    return f'<ul class="legend">{items}</ul>' if items else ""


def place_of(share: float, most: int = 1000) -> int:
    return round(most * share)


def _robust(values: Iterable[float], goal: Direction | None) -> Scale:
    """An axis for most of the values: a few that are far off lie on its edge, on the side that is
    worse, or on both where none is."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if len(ordered) < 20:
        return scale_of(ordered)
    last = len(ordered) - 1
    low, high = ordered[0], ordered[last]
    inner_low, inner_high = ordered[last * 2 // 100], ordered[last * 98 // 100]
    room = inner_high / 2 - inner_low / 2
    if goal != "max" and high / 2 - inner_high / 2 > 2 * room:
        high = inner_high
    if goal != "min" and inner_low / 2 - low / 2 > 2 * room:
        low = inner_low
    return scale_of([low, high])
