"""A study as a page of HTML: complete in one file, and nothing is fetched when it is opened."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from entrepot import __version__
from entrepot.study import charts
from entrepot.study.charts import Marks, escaped
from entrepot.study.drawn import Curve, drawn
from entrepot.study.influence import is_number
from entrepot.study.parallel import AXIS_PX, coordinates
from entrepot.study.scales import thinned
from entrepot.study.table import Row, Table, shown
from entrepot.study.text import Value
from entrepot.study.trials import FAILED, PRUNED, RELEASED, RUNNING

if TYPE_CHECKING:
    from entrepot.store.base import Store

CURVES = 150
ROWS = 100
COLUMNS = 24
"""Knobs in the table."""

GOALS = 4
"""Scores that have a chart of their own."""

TIP_CHARS = 240
TIPS_NBYTES = 800_000
"""Where what is said of trials that are pointed at would be more, knobs are left out."""

STATES = ((PRUNED, "pruned"), (FAILED, "failed"), (RUNNING, "running"), (RELEASED, "handed back"))


def study_page(store: Store, name: str, made: Table, *, at: float | None = None) -> str:
    """The page of a study, however many trials it has: history, curves, what decides, parallel
    coordinates, and the best trials as a table.

    :param at: when it is made, in seconds since 1970; by default now.
    :raises StoreError: the curves cannot be read.
    """
    told = drawn(store, [row.attempted for row in with_curves(made)])
    return page(name, store.url, made, told, time.time() if at is None else at)


def with_curves(made: Table) -> list[Row]:
    """Trials whose curves are drawn: the best, those that run, and others evenly."""
    told = [row for row in made.rows if row.reports > 1]
    if len(told) <= CURVES:
        return told
    first = told[: CURVES // 3]
    running = [row for row in told[CURVES // 3 :] if row.state == RUNNING][: CURVES // 6]
    chosen = {row.trial for row in (*first, *running)}
    chosen |= {row.trial for row in thinned(told, CURVES - len(chosen))}
    return [row for row in told if row.trial in chosen]


def page(name: str, url: str, made: Table, told: Mapping[int, Curve], at: float) -> str:
    """The page, of what was read."""
    marks: dict[str, Marks] = {}
    figures = []
    scores = made.scores[:GOALS]
    for score in scores:
        goal = made.goal if isinstance(made.goal, str) else (made.goal or {}).get(score)
        figure, found = charts.history(made.rows, score, goal, charts.DOTS // len(scores))
        figures.append(figure)
        marks |= found
    if len(scores) > 1:
        figure, found = charts.scatter(made.rows, scores)
        figures.append(figure)
        marks |= found
    if figure := charts.curves(made.rows, told):
        figures.append(figure)
    weights = {score: made.influence(score) for score in scores}
    figures += [charts.importance(found, score) for score, found in weights.items()]
    if len(figures) % 2:  # they stand two in a row
        figures[-1] = figures[-1].replace('class="card"', 'class="card wide"', 1)
    heaviest = {
        knob: max(found.get(knob, 0.0) for found in weights.values()) for knob in made.knobs
    }
    waves, axes = coordinates(made.rows, made.knobs, scores, heaviest)
    figures += [waves, _table(made)]
    style = f"{_resource('page.css')}\n.axes {{ min-width: {axes * AXIS_PX}px; }}\n"
    script = _resource("page.js") + _resource("sorting.js")
    data = {"marks": marks, "trials": _tips(made, told, marks, waves)}
    # Whatever is in a study, the browser runs and loads what has these hashes and nothing else.
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )
    title = escaped(name)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}: study</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{_head(name, url, made, at)}\n"
        f"<main>\n{chr(10).join(figures)}\n</main>\n"
        f"<footer>entrepot {escaped(__version__)}; all of this page is in this file.</footer>"
        f'\n<script type="application/json" id="data">{_json(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _head(name: str, url: str, made: Table, at: float) -> str:
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
    states = made.states
    tiles = [("trials", f"{len(made):,}", ""), ("done", f"{states['done']:,}", "")]
    tiles += [(said, f"{states[state]:,}", "") for state, said in STATES if states[state]]
    point = ""
    best = made.best
    if best and isinstance(made.goal, str):
        row = best[0]
        tiles.append((f"best ({made.goal})", shown(row.scores["score"]), "best"))
        knobs = "".join(
            f"<code>{escaped(knob, 60)} = {escaped(shown(value))}</code>"
            for knob, value in list(row.values.items())[:COLUMNS]
        )
        point = f'<div class="point"><b>best: trial {row.trial}</b>{knobs}</div>'
    elif best:
        tiles.append(("on the Pareto front", f"{len(best):,}", "best"))
    listed = "".join(
        f'<div class="{kind}"><dt>{escaped(said)}</dt><dd>{escaped(value)}</dd></div>'
        if kind
        else f"<div><dt>{escaped(said)}</dt><dd>{escaped(value)}</dd></div>"
        for said, value, kind in tiles
    )
    return (
        f"<header><h1>{escaped(name)}</h1><p>a study in {escaped(url, 300)}, as it was on {when}; "
        f'{escaped(made.order)}</p><dl class="tiles">{listed}</dl>{point}</header>'
    )


def _table(made: Table) -> str:
    if not made.rows:
        return charts.nothing("Trials", "There is none yet.")
    rows = made.rows[:ROWS]
    knobs, scores = made.knobs[:COLUMNS], made.scores[: 2 * GOALS]
    numeric = {
        knob: all(is_number(row.values[knob]) for row in rows if knob in row.values)
        for knob in knobs
    }
    why = any(row.attempted.meta.because for row in rows)
    heads = [("trial", False), ("state", True), *((score, False) for score in scores)]
    heads += [("reports", False), ("seconds", False), ("who", True)]
    heads += [(knob, not numeric[knob]) for knob in knobs] + [("why", True)] * why
    head = "".join(
        f'<th scope="col"{" class=word" * word}>{escaped(said, 40)}</th>' for said, word in heads
    )
    body = "".join(_row(row, scores, knobs, numeric, why) for row in rows)
    note = f"the first {len(rows):,} of {len(made):,}; `entrepot study export` writes all of them"
    if len(rows) == len(made):
        note = f"all {len(made):,}"
    if len(made.knobs) > len(knobs):
        note += f"; {len(knobs)} of {len(made.knobs):,} knobs"
    return (
        f'<section class="card wide"><h2>Trials</h2><p class="note">{escaped(note)}; '
        f'{escaped(made.order)}</p><p class="note sorted" role="status"></p><div class="scroll" '
        f'tabindex="0" role="region" aria-label="trials"><table class="trials"><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _row(
    row: Row, scores: Sequence[str], knobs: Sequence[str], numeric: Mapping[str, bool], why: bool
) -> str:
    said = row.attempted.meta
    cells = [f"<td>{row.trial}</td>", f'<td class="word {row.state}">{row.state}</td>']
    cells += [_number(row.scores.get(score)) for score in scores]
    cells += [f"<td>{row.reports:,}</td>", f"<td>{row.attempted.took_s:,.1f}</td>"]
    cells.append(f'<td class="word">{escaped(said.who, 40)}</td>')
    for knob in knobs:
        value = row.values.get(knob)
        word = f'<td class="word">{escaped(shown(value)) if knob in row.values else ""}</td>'
        cells.append(_number(value) if numeric[knob] else word)
    if why:
        cells.append(f'<td class="word">{escaped(said.because, 80)}</td>')
    return f"<tr{' class=best' * row.best}>{''.join(cells)}</tr>"


def _number(value: Value) -> str:
    """A cell. Where people are shown fewer digits than it has, it is sorted by all of them."""
    said = escaped(shown(value))
    if isinstance(value, float) and math.isfinite(value) and float(said) != value:
        return f'<td data-v="{value!r}">{said}</td>'
    return f"<td>{said}</td>"


def _tips(
    made: Table, told: Mapping[int, Curve], marks: Mapping[str, Marks], waves: str
) -> dict[int, str]:
    """What is said of each trial that can be pointed at."""
    pointed = {trial for each in marks.values() for _, _, trial in each} | told.keys()
    pointed |= set(map(int, re.findall(r' data-t="([0-9]+)"', waves)))
    rows = [row for row in made.rows if row.trial in pointed]
    tips = {row.trial: _tip(row) for row in rows}
    if len(_json(tips)) > TIPS_NBYTES:
        tips = {trial: tip.partition("\n")[0] for trial, tip in tips.items()}
    return tips


def _tip(row: Row) -> str:
    scores = ", ".join(
        shown(one) if name == "score" else f"{shown(name)} {shown(one)}"
        for name, one in row.scores.items()
    )
    head = f"trial {row.trial}, {row.state}{', ' if scores else ''}{scores}"
    knobs = "\n".join(f"{shown(knob)} = {shown(value)}" for knob, value in row.values.items())
    return f"{head}\n{knobs}"[:TIP_CHARS]


def _json(data: object) -> str:
    """JSON that ends no script, whatever texts are in it."""
    said = json.dumps(data, separators=(",", ":"))
    return said.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _resource(name: str) -> str:
    return resources.files("entrepot.study").joinpath(name).read_text(encoding="utf-8")
