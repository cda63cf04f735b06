"""``entrepot study export``."""

from __future__ import annotations

import csv
import io
import json as json_
import sys
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from entrepot.cli import output
from entrepot.cli.options import Json
from entrepot.cli.study_reading import Name, Url, looking
from entrepot.errors import MissingExtra
from entrepot.study.plain import plain

if TYPE_CHECKING:
    from entrepot.study.table import Table


class Form(StrEnum):
    """What files can be."""

    csv = "csv"
    json = "json"
    parquet = "parquet"


def command(
    url: Url,
    name: Name,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The file, whose name says what it is to be; standard output if not given.",
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format", metavar="FORM", help="csv, json or parquet; csv on standard output."
        ),
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="With all that each trial reported; not in CSV.")
    ] = False,
    json: Json = False,
) -> None:
    """Write all trials to a file: CSV, JSON or Parquet.

    A row a trial, the best first: score, state, when, who, and each knob as a column of its own,
    point.NAME. JSON has NaN and infinities as text. Parquet needs the package pyarrow.

    \b
    Examples:
      entrepot study export /mnt/shared spam --output spam.csv
      entrepot study export /mnt/shared spam --format json --curves >spam.json
    """
    from entrepot.study.drawn import drawn
    from entrepot.study.table import table
    from entrepot.study.writing import write_whole

    form = form or _form_of(to)
    if curves and form is Form.csv:
        raise typer.BadParameter("a CSV has no place for curves; take json or parquet")
    if to is None and (json or form is Form.parquet):
        raise typer.BadParameter(f"{'--json' if json else 'parquet'} needs an --output")
    arrow = _pyarrow() if form is Form.parquet else None
    with looking(url, name) as (store, found):
        made = table(found)
        records = made.records()
        if curves:
            told = drawn(store, [row.attempted for row in made.rows])
            for record in records:
                record["curve"] = [value for _, value in told.get(record["trial"], ())]
    if arrow is not None:
        data = _parquet(arrow, records)
    elif form is Form.json:
        data = _json(name, made, records).encode()
    else:
        data = _csv(made, records).encode()
    if to is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    write_whole(to, data)
    if json:
        output.emit("exported", file=str(to), format=form.value, trials=len(made), nbytes=len(data))
    else:
        output.say(f"wrote {to}: {len(made):,} trials, {len(data):,} bytes")


def _form_of(to: Path | None) -> Form:
    if to is None:
        return Form.csv
    try:
        return Form(to.suffix.lower().removeprefix("."))
    except ValueError:
        raise typer.BadParameter(
            f"{to.name!r} does not end in .csv, .json or .parquet; say which with --format"
        ) from None


def _pyarrow() -> Any:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as fault:
        raise MissingExtra(
            "Parquet is written by the package pyarrow, which is not installed here: "
            "`pip install pyarrow`, or take --format csv"
        ) from fault


def _csv(made: Table, records: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    heads = list(records[0] if records else _heads(made))
    writer = csv.DictWriter(out, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _heads(made: Table) -> list[str]:
    return ["trial", "attempt", "state", "best", *made.scores, "reports"]


def _json(name: str, made: Table, records: list[dict[str, Any]]) -> str:
    lines = [json_.dumps(plain(record), ensure_ascii=False) for record in records]
    head = {"study": name, "goal": made.goal, "scores": made.scores, "knobs": made.knobs}
    trials = ",\n".join(lines)
    return f'{json_.dumps(head, ensure_ascii=False)[:-1]}, "trials": [\n{trials}\n]}}\n'


def _parquet(arrow: Any, records: list[dict[str, Any]]) -> bytes:
    pyarrow, parquet = arrow
    heads = records[0] if records else ()
    columns = {head: _even([record[head] for record in records]) for head in heads}
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def _even(column: list[Any]) -> list[Any]:
    """A column of one type: whole numbers beside others are floats, what is mixed is text."""
    kinds = {type(value) for value in column if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in column]
    if len(kinds) > 1 or (kinds == {int} and any(abs(one or 0) >= 1 << 63 for one in column)):
        return [None if value is None else str(value) for value in column]
    return column
