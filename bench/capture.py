"""What early exit saves, by depth, and what hooks cost that nobody has armed.

    python bench/capture.py                # a minute
    python bench/capture.py --quick        # seconds

A transformer of 12 layers on the processor, one thread; forwards with and without are timed in
turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

from bench.report import Bar, Figures, Question, Subject, main
from entrepot.capture import ModelIOCatcher

LAYERS = 12
WIDTH = 256

WHAT = {
    "whole_ms": "a whole forward: ms",
    **{
        f"exit_at_{depth}_of_{LAYERS}": f"captured after layer {depth} of {LAYERS}, and stopped "
        f"there, over a whole forward"
        for depth in (1, 3, 6, 9, 12)
    },
    "idle_hooks_ratio": "a forward with hooks that are not armed, over one without any",
}

BARS = (
    Bar("exit_at_1_of_12", 0.15, at_least=False),
    Bar("idle_hooks_ratio", 1.02, at_least=False),
)

CAPTURE = Subject("Captures, measured", WHAT, BARS)


def _model() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0)
    # Not the fused path, which calls no module within a layer and so runs no hook there.
    return nn.Sequential(*(_copied(layer) for _ in range(LAYERS))).train()


def _copied(layer: nn.TransformerEncoderLayer) -> nn.Module:
    made = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0)
    made.load_state_dict(layer.state_dict())
    return made


def _timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def depths(figures: Figures, quick: bool) -> None:
    """Stopping early."""
    torch.set_num_threads(1)
    model = _model()
    catcher = ModelIOCatcher(model)
    x = torch.randn(8, 64, WIDTH)
    with torch.no_grad():
        model(x)
        for _ in range(5 if quick else 30):
            whole = _timed(lambda: model(x))
            figures.add(whole_ms=1000 * whole)
            for depth in (1, 3, 6, 9, 12):
                with catcher.for_product(f"outputs[{depth - 1}]"):
                    spent = _timed(lambda: catcher.run(x))
                figures.add(**{f"exit_at_{depth}_of_{LAYERS}": spent / whole})


def idle(figures: Figures, quick: bool) -> None:
    """Hooks that nobody has armed."""
    torch.set_num_threads(1)
    bare, hooked = _model(), _model()
    catcher = ModelIOCatcher(hooked)
    x = torch.randn(8, 64, WIDTH)
    with torch.no_grad():
        bare(x), hooked(x)
        for _ in range(3 if quick else 10):
            with_: list[float] = []
            without: list[float] = []
            for turn in range(8 if quick else 20):
                # In turn, and either first, so that neither has the better cache.
                order = ((bare, without), (hooked, with_))
                for model, times in order if turn % 2 else order[::-1]:
                    times.append(_timed(lambda model=model: model(x)))  # type: ignore[misc]
            figures.add(idle_hooks_ratio=statistics.median(with_) / statistics.median(without))
    catcher.close()


QUESTIONS: dict[str, Question] = {"depths": depths, "idle": idle}


if __name__ == "__main__":
    sys.exit(main(__doc__, CAPTURE, QUESTIONS))
