"""Writes the dashboards: ``python -m observability.grafana.build``.

Their JSON is committed, so that Grafana needs nothing of this; a test asserts that it is what this
makes.
"""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from observability.grafana.market import market
from observability.grafana.studies import studies

FOLDER = Path(__file__).parent / "dashboards"


def text(made: board.Dashboard) -> str:
    """The JSON of a dashboard; the same for the same dashboard."""
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def everything() -> dict[str, str]:
    """The files, by name."""
    return {"market.json": text(market()), "studies.json": text(studies())}


if __name__ == "__main__":
    for name, said in everything().items():
        (FOLDER / name).write_text(said, encoding="utf-8")
