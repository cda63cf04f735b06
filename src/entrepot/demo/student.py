"""A student, which learns from a teacher through the loader, and a teacher that is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from entrepot.demo import sms, suppliers, teacher, text
from entrepot.demo.consumer import PRODUCT_S, Watcher
from entrepot.demo.place import Place, start_broker
from entrepot.demo.processes import Part, Parts
from entrepot.errors import DemoFailed
from entrepot.market.client import Client
from entrepot.mediums.shm import ShmMedium

if TYPE_CHECKING:
    from entrepot.training import SoftDataLoader

EPOCHS = 3
PRODUCTS_A_STEP = 8
"""Products stacked to one step: 64 messages."""

RATE = 0.3
SEED = 1

KILL_IN = 1
"""The epoch, from 0, in the middle of which a teacher is killed."""

FALLS_TO = 0.1
"""What part of the first loss may be left in the last epoch."""

PROCESSES = 3
"""Broker and two teachers."""

Floats = NDArray[np.float64]


class LearningWatcher(Watcher, Protocol):
    """Who is told how this part goes, too."""

    def learning(self) -> None:
        """It begins."""

    def loss(self, now: float) -> None:
        """The mean loss of an epoch that is over."""


@dataclass
class Learned:
    """How it went.

    :ivar losses: of the first step, and the mean of each epoch.
    :ivar right: the part of the messages that the student tells right, having seen no label.
    :ivar teacher_right: the same of its teacher.
    :ivar killed: the teacher that was.
    """

    epochs: int = EPOCHS
    losses: list[float] = field(default_factory=list)
    right: float = 0.0
    teacher_right: float = 0.0
    killed: str = ""


class Student:
    """A linear model of the words of a message."""

    def __init__(self) -> None:
        self._weights: Floats = np.zeros(text.VOCABULARY)
        self._moved: Floats = np.full(text.VOCABULARY, 1e-8)

    def odds(self, tokens: NDArray[np.int32]) -> Floats:
        """What it thinks of each row."""
        found: Floats = self._weights[tokens].sum(axis=1)
        return found

    def step(self, tokens: NDArray[np.int32], taught: NDArray[np.float32]) -> float:
        """Come nearer to the teacher; the loss, cross-entropy, of before."""
        wanted, own = _probability(taught), _probability(self.odds(tokens))
        loss = -(wanted * np.log(own) + (1 - wanted) * np.log(1 - own)).mean()
        gradient: Floats = np.zeros(text.VOCABULARY)
        np.add.at(gradient, tokens, ((own - wanted) / text.BATCH)[:, None])
        gradient[text.PAD] = 0.0
        self._moved += gradient**2  # Adagrad: words that are seldom seen move farther
        self._weights -= RATE * gradient / np.sqrt(self._moved)
        return float(loss)


def _probability(odds: NDArray[Any]) -> Floats:
    found: Floats = 1 / (1 + np.exp(-np.clip(odds, -25, 25).astype(np.float64)))
    return found


def learn(parts: Parts, place: Place, watch: LearningWatcher, path: Path) -> Learned:
    """Have it happen: a broker, two teachers, and the student here.

    :param path: where the messages are.
    :raises DemoFailed: the loss does not fall, or a message came twice in an epoch, or not at all.
    """
    from entrepot.training import SoftDataLoader

    watch.learning()
    broker, backend = start_broker(parts, place, watch)
    teachers = _start_teachers(parts, backend, path, watch)
    student, learned = Student(), Learned()
    with SoftDataLoader(
        place.frontend,
        teacher.TAUGHT,
        products=teacher.PRODUCTS,
        length=len(suppliers.epoch()),
        batch_size=PRODUCTS_A_STEP,
        shuffle=True,
        seed=SEED,
        medium="shm",
        timeout_s=PRODUCT_S,
        framework="numpy",
        name="student",
    ) as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            losses = list(_epoch(loader, student, teachers, learned, watch))
            if not learned.losses:
                learned.losses.append(losses[0])
            learned.losses.append(float(np.mean(losses)))
            watch.loss(learned.losses[-1])
    if learned.losses[-1] > FALLS_TO * learned.losses[0]:
        raise DemoFailed(f"the student's loss does not fall: {learned.losses}")
    learned.right, learned.teacher_right = _right(student.odds), _right(teacher.teacher().odds)
    with Client(place.frontend, ShmMedium.create(1, 1)) as client:
        parts.drain(client.drain, [part for part in teachers if part.running], broker)
    return learned


def _start_teachers(parts: Parts, backend: str, path: Path, watch: Watcher) -> list[Part]:
    names = ("teacher-1", "teacher-2")
    served = ("--serve", f"{teacher.__name__}:teach", "--product", teacher.PATTERN)
    started = [
        parts.start(
            name,
            *("supplier", *served, "--backend", backend, "--name", name, "--json"),
            environment={sms.VARIABLE: str(path)},
        )
        for name in names
    ]
    for part in started:
        part.wait_for("serving")
        watch.part(part.title, part.pid, f"serves {teacher.PATTERN}")
    return started


def _epoch(
    loader: SoftDataLoader,
    student: Student,
    teachers: list[Part],
    learned: Learned,
    watch: Watcher,
) -> Iterator[float]:
    """The loss of each step."""
    seen: Counter[int] = Counter()
    title = f"a student, epoch {loader.epoch + 1} of {EPOCHS}"
    with watch.stage(title, len(loader)) as done:
        for number, batch in enumerate(loader):
            real = batch["index"].reshape(-1) >= 0
            tokens = batch["tokens"].reshape(-1, text.TOKENS)[real]
            seen.update(batch["index"].reshape(-1)[real].tolist())
            yield student.step(tokens, batch["odds"].reshape(-1)[real])
            if loader.epoch == KILL_IN and number == len(loader) // 2:
                teachers[0].kill()
                learned.killed = teachers[0].title
            done(number + 1)
    if seen != Counter(range(sms.MESSAGES)):
        raise DemoFailed(
            f"epoch {loader.epoch} of the student had {len(seen)} messages, one of them "
            f"{max(seen.values())} times"
        )


def _right(odds: Any) -> float:
    epoch = suppliers.epoch()
    right = 0
    for number in range(len(epoch)):
        batch = epoch.token_batch(number)
        real = batch["index"] >= 0
        right += int(((odds(batch["tokens"]) > 0) == batch["spam"])[real].sum())
    return right / sms.MESSAGES
