"""Serves the stage that cleans and tokenises. There is no torch where it runs.

python -m examples.sms_search.clean
"""

from __future__ import annotations

import argparse

from entrepot.cli import told
from entrepot.logs import setup
from entrepot.settings import read_settings
from entrepot.stages import StageServer
from examples.sms_search.words import tokens


def main() -> None:
    with told(as_json=False):
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument(
            "--backend", default=read_settings().supplier.endpoint, help="the broker's"
        )
        parser.add_argument("--stage", default="clean", help="its name")
        given = parser.parse_args()
        setup("info")
        StageServer(given.backend, given.stage, forward=tokens).run()


if __name__ == "__main__":
    main()
