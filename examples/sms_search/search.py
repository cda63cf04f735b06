"""Searches: the same on every machine, which have nothing in common but the store.

python -m examples.sms_search.search --store /mnt/shared --host gpu-7
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from entrepot import Client
from entrepot.cli import told
from entrepot.demo.sms import MESSAGES, Message
from entrepot.errors import ConfigurationError
from entrepot.logs import setup
from entrepot.mediums.chosen import create
from entrepot.settings import read_settings
from entrepot.stages import CutOptimizer, RemoteStage, TorchStage
from entrepot.store import Store
from entrepot.store.record import EMPTY
from entrepot.study import Pruner, Sampler, Space, Study, Trial
from examples.sms_search.data import COUNT, batches, messages
from examples.sms_search.embed import OPTIMIZERS

NAME = "sms"
TRIALS, EPOCHS = 8, 3
STALE_S = 600.0

SPACE = Space().real("lr", 1e-3, 0.3, log=True).int("dim", 8, 48).choice("opt", ["adam", "sgd"])

SAMPLER = Sampler.sobol(0)


def study_of(store: Store, me: str, name: str = NAME, stale_s: float = STALE_S) -> Study:
    """The study, as every machine has it."""
    pruner = Pruner.median(warmup=1, startup=2)
    return Study(store, name, SPACE, SAMPLER, goal="min", pruner=pruner, me=me, stale=stale_s)


def agree(store: Store, study: str, epochs: int, count: int) -> None:
    """Have each trial take so much, on every machine: scores of others are not to be compared.
    Whoever comes first writes it down.

    :raises ConfigurationError: whoever came first said otherwise.
    """
    ours = {"epochs": str(epochs), "messages": str(count)}
    name = f"{study}/space/effort"
    found = store.resolve(name)
    if found is None and not store.claim(name, EMPTY, ours):
        found = store.resolve(name)
    if found is not None and found.meta != ours:
        there = found.meta
        raise ConfigurationError(
            f"a trial of the study {study!r} takes {there.get('epochs')} epochs of "
            f"{there.get('messages')} messages, as whoever began it said, and here {epochs} of "
            f"{count}; give --epochs and --messages as there, or another --study"
        )


def train(
    tokens: RemoteStage, embed: TorchStage, trial: Trial, every: list[Message], epochs: int
) -> tuple[str, str]:
    """One trial: two stages are elsewhere, and the head is here. The hash of the far half's
    parameters, before and after."""
    point: dict[str, Any] = {**trial.point}
    torch.manual_seed(trial.number)
    head = nn.Linear(point["dim"], 2)
    near = OPTIMIZERS[point["opt"]](head.parameters(), lr=point["lr"])
    optimizer = CutOptimizer([near, embed])
    before = embed.describe().parameters[:12]
    for epoch in range(1, epochs + 1):
        losses: list[float] = []
        for texts, spam in batches(every):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(head(embed(tokens(texts))), torch.tensor(spam))
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()))
        if trial.report(sum(losses) / len(losses)).should_stop and epoch < epochs:
            break
    else:
        trial.finish()  # after its last epoch it is done, whatever the pruner says
    return before, embed.describe().parameters[:12]


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """What argparse is to make of an option: a whole number in these bounds."""

    def read(given: str) -> int:
        try:
            number = int(given)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            bounds = f"from {least} on" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{given!r} is no whole number {bounds}")
        return number

    return read


class Options(argparse.ArgumentParser):
    """Of which each can also stand in the environment: ``--trials`` as ``SEARCH_TRIALS``."""

    def option(
        self, name: str, default: str | int | float | None, said: str, most: int | None = None
    ) -> None:
        """One more; without a default it has to be given. A whole number is at least 1.

        :param most: the largest whole number that it may be.
        """
        found = os.environ.get(f"SEARCH_{name.upper()}", default)
        kind: Callable[[str], Any] = str if default is None else type(default)
        if isinstance(default, int):
            kind = whole(1, most)
        self.add_argument(f"--{name}", type=kind, default=found, required=found is None, help=said)


def main() -> None:
    with told(as_json="--json" in sys.argv):
        search()


def search() -> None:
    """Trials of the study, until all of them are finished."""
    settings = read_settings().client
    parser = Options(description=__doc__)
    parser.option("store", None, "a folder, or a bucket's URL")
    parser.option("study", NAME, "its name in the store")
    parser.option("frontend", settings.endpoint, "the broker's")
    parser.option("host", "", "where suppliers find this machine; if empty, the settings say")
    parser.option("me", socket.gethostname(), "who ran a trial, in its record")
    parser.option("trials", TRIALS, "trials of the study, over all machines")
    parser.option("epochs", EPOCHS, "epochs of a trial that is not pruned")
    parser.option("messages", COUNT, "messages of an epoch", MESSAGES)
    parser.option("stale", STALE_S, "seconds of silence after which another takes a trial over")
    parser.option("clean", "clean", "the name of the stage that tokenises")
    parser.option("embed", "embed", "the name of the stage that embeds")
    parser.add_argument("--json", action="store_true", help="an object a line, for programs")
    given = parser.parse_args()
    setup("info")
    torch.set_num_threads(1)  # several processes on one machine would be in each other's way
    every = messages(given.messages)
    if given.host:
        settings = settings.model_copy(update={"medium": "tcp", "tcp_host": given.host})
    with Client(given.frontend, create(settings)) as client, Store.open(given.store) as store:
        tokens = RemoteStage(client, given.clean)
        study = study_of(store, given.me, given.study, given.stale)
        agree(store, study.name, given.epochs, given.messages)
        for trial in study.work(trials=given.trials):
            config = {**trial.point, "seed": trial.number}
            run = f"{given.study}/{trial.number}/{trial.attempt}"
            with trial:
                embed = TorchStage(client, given.embed, run=run, config=config)
                try:
                    before, after = train(tokens, embed, trial, every, given.epochs)
                finally:
                    embed.end()
            if given.json:
                said = {"trial": trial.number, "point": str(trial.point)}
                print(json.dumps({**said, "before": before, "after": after}), flush=True)
            else:
                far = f"far half {before} -> {after}"
                print(f"trial {trial.number}: {trial.point}; {far}", flush=True)


if __name__ == "__main__":
    main()
