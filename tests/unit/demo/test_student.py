"""The demonstration's teacher and student: what they learn, on messages that are made up here."""

from __future__ import annotations

import numpy as np
import pytest

from entrepot.demo import text
from entrepot.demo.sms import Message
from entrepot.demo.student import Student
from entrepot.demo.teacher import TAUGHT, Teacher

WORDS = ("free prize call now", "see you at home", "win cash", "are you coming")


def messages(count: int) -> list[Message]:
    """Spam and ham in turn."""
    return [Message(number % 2 == 0, f"{WORDS[number % 4]} {number}") for number in range(count)]


@pytest.fixture
def epoch() -> text.Epoch:
    return text.Epoch(messages(61))


def test_the_teacher_knows_spam(epoch: text.Epoch) -> None:
    teacher = Teacher(epoch)
    for number in range(len(epoch)):
        batch = epoch.token_batch(number)
        real = batch["index"] >= 0
        odds = teacher.odds(batch["tokens"])
        assert ((odds > 0) == batch["spam"])[real].all()
        assert len(TAUGHT.encode(index=batch["index"], tokens=batch["tokens"], odds=odds))


def test_filling_says_nothing(epoch: text.Epoch) -> None:
    nothing = np.full((1, text.TOKENS), text.PAD, np.int32)
    student = Student()
    for _ in range(3):
        student.step(nothing, np.full(1, 9.0, np.float32))
    assert student.odds(nothing) == 0
    bias = Teacher(epoch).odds(nothing)[0]
    assert bias == pytest.approx(np.log(31 / 30), abs=1e-6)


def test_the_student_comes_nearer_with_each_step(epoch: text.Epoch) -> None:
    teacher, student = Teacher(epoch), Student()
    batches = [epoch.token_batch(number)["tokens"] for number in range(7)]
    losses = [
        sum(student.step(tokens, teacher.odds(tokens)) for tokens in batches) for _ in range(20)
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 3
    tokens = np.concatenate(batches)
    assert ((student.odds(tokens) > 0) == (teacher.odds(tokens) > 0)).all()
