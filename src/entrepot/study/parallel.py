"""Parallel coordinates of a study's page: a line a trial, across an axis a knob. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from entrepot.study.charts import HEIGHT, escaped, legend_of, nothing, place_of
from entrepot.study.scales import Axis, axis_of, thinned
from entrepot.study.table import Row
from entrepot.study.trials import DONE

LINES = 200
BEST = 20
"""Of these lines, those that the very best have for certain."""

AXES = 12

AXIS_PX = 96
"""Pixels that an axis needs for its texts; where there are fewer the chart is scrolled."""

TALL = HEIGHT + 60
HEAD = 34
NAME_CHARS = 13
TICK_CHARS = 10

LEVELS = (("g0", 0.1, "best tenth"), ("g1", 0.3, "to 30 %"), ("g2", 0.6, "to 60 %"))
"""Colours by the share of trials that are better."""

REST = ("g3", "the rest")

UNSET = 1000
"""Where the line of a trial goes that has not got the knob."""


def coordinates(
    rows: Sequence[Row], knobs: Sequence[str], scores: Sequence[str], weight: Mapping[str, float]
) -> tuple[str, int]:
    """The chart, and how many axes it has.

    :param rows: the best first, which is what the colours say.
    :param weight: how much each knob decides: where there are too many, which are shown.
    """
    done = [row for row in rows if row.state == DONE and row.scores.keys() >= set(scores)]
    if not done or not knobs:
        return nothing("Parallel coordinates", "No trial with knobs is done yet."), 0
    scores = scores[: AXES // 2]
    room = AXES - len(scores)
    most = sorted(knobs, key=lambda knob: -weight.get(knob, 0.0))[:room]
    kept = [knob for knob in knobs if knob in most]
    some = [*done[:BEST], *thinned(done[BEST:], LINES - BEST)]
    axes = [axis_of([row.values[knob] for row in some if knob in row.values]) for knob in kept]
    axes += [axis_of([row.scores[score] for row in some]) for score in scores]
    gaps = {knob for knob in kept if any(knob not in row.values for row in some)}
    floor = 880 if gaps else 1000
    place = {row.trial: place for place, row in enumerate(done)}
    lines = []
    for row in reversed(some):
        values = [(knob in row.values, row.values.get(knob)) for knob in kept]
        values += [(True, row.scores[score]) for score in scores]
        points = [
            (
                _across(nth, len(axes)),
                place_of(1 - axis.at(value), floor) if has else UNSET,
            )
            for nth, (axis, (has, value)) in enumerate(zip(axes, values, strict=True))
        ]
        share = place[row.trial] / len(done)
        kind = next((kind for kind, end, _ in LEVELS if share < end), REST[0])
        if len(scores) > 1:
            kind = "g0" if row.best else "g2"
        lines.append(f'<path class="curve {kind}" data-t="{row.trial}" d="{_waves(points)}"/>')
    told = f"{len(some):,} of {len(done):,}" if len(some) < len(done) else f"{len(done):,}"
    note = f"{told} trials that are done"
    if len(kept) < len(knobs):
        note += f"; of {len(knobs):,} knobs those {len(kept)} that decide most"
    legend = legend_of([*((kind, said) for kind, _, said in LEVELS), REST])
    if len(scores) > 1:
        legend = legend_of([("g0", "on the Pareto front"), ("g2", "the rest")])
    posts, texts = _posts([*kept, *scores], axes, floor, gaps)
    return (
        f'<figure class="card wide"><figcaption><h2>Parallel coordinates</h2><p>{note}</p>{legend}'
        f'</figcaption><div class="scroll"><div class="axes"><svg class="area" data-kind="waves" '
        f'width="100%" height="{HEAD + TALL + 16}" role="img" aria-label="Parallel coordinates">'
        f'<svg class="plot" y="{HEAD}" width="100%" height="{TALL}" viewBox="0 0 1000 1000" '
        f'preserveAspectRatio="none">{"".join(lines)}{posts}</svg>{texts}</svg></div></div></figure>'
    ), len(axes)


def _across(nth: int, count: int) -> int:
    """Where an axis stands: half a gap from the edges, so that its texts have room."""
    return round(1000 * (nth + 0.5) / count)


def _waves(points: Sequence[tuple[int, int]]) -> str:
    (x, y), *others = points
    said = f"M{x} {y}"
    for across, down in others:
        middle = (x + across) // 2
        said += f"C{middle} {y} {middle} {down} {across} {down}"
        x, y = across, down
    return said if others else f"M{x - 100} {y}H{x + 100}"


def _posts(
    names: Sequence[str], axes: Sequence[Axis], floor: int, gaps: set[str]
) -> tuple[str, str]:
    """The axes, and what is written at them."""
    posts, texts = [], []
    for nth, (name, axis) in enumerate(zip(names, axes, strict=True)):
        across = _across(nth, len(axes))
        posts.append(f'<path class="post" d="M{across} 0V{floor}"/>')
        x = f"{across / 10:.2f}%"
        texts.append(
            f'<text class="name" x="{x}" y="16" text-anchor="middle">{escaped(name, NAME_CHARS)}'
            f"<title>{escaped(name)}</title></text>"
        )
        for share, said in axis.ticks():
            y = HEAD + (1 - share) * floor / 1000 * TALL + 4
            texts.append(
                f'<text class="tick" x="{x}" dx="5" y="{y:.0f}">{escaped(said, TICK_CHARS)}</text>'
            )
        if name in gaps:
            y = HEAD + UNSET / 1000 * TALL + 4
            texts.append(f'<text class="tick unset" x="{x}" dx="5" y="{y:.0f}">unset</text>')
    return "".join(posts), "".join(texts)
