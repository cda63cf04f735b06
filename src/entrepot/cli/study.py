"""``entrepot study``: the commands that look at studies, and mend them."""

from __future__ import annotations

import typer

from entrepot.cli.commands import Lazy


class StudyCommands(Lazy):
    table = {  # noqa: RUF012  # declared on the base
        "list": ("study_list", "List the studies of a store, with their states and their best."),
        "show": ("study_show", "Show one study: its trials, the best first, and what is amiss."),
        "watch": ("study_watch", "Watch a study while machines work on it."),
        "best": ("study_best", "Print the best trial, or the Pareto front."),
        "curves": ("study_curves", "Show what each trial reported, as a small curve."),
        "rescue": ("study_rescue", "Hand trials of machines that died to whoever works next."),
        "export": ("study_export", "Write all trials to a file: CSV, JSON or Parquet."),
        "delete": ("study_delete", "Delete a study, all its trials with it."),
    }


command = typer.Typer(
    cls=StudyCommands, no_args_is_help=True, add_completion=False, rich_markup_mode=None
)


@command.callback()
def study() -> None:
    """Look at studies in a store, rescue their trials, export them.

    A store is a folder, or a bucket: /mnt/shared, s3://bucket/prefix?endpoint=http://host:9000,
    gs://bucket, az://container. What only looks writes nothing, but for `show`: where trials run
    it asks the store for the time, which takes a write.
    """
