"""Serves one part of the model: its weights live and are trained here.

python -m examples.split_model.stages embed
"""

from __future__ import annotations

import argparse

import torch

from entrepot.stages import TorchStageServer
from examples.split_model.model import BUILDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=BUILDS)
    parser.add_argument("--backend", default="tcp://127.0.0.1:5556", help="the broker's")
    parser.add_argument("--store", help="where checkpoints are kept: a folder, or a bucket's URL")
    given = parser.parse_args()
    torch.set_num_threads(1)  # three processes on one machine would be in each other's way
    TorchStageServer(given.backend, given.stage, BUILDS[given.stage], store=given.store).run()


if __name__ == "__main__":
    main()
