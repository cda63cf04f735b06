"""Batches hold every message once, and the same messages give the same batches anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from entrepot.demo import sms, text
from entrepot.demo.sms import Message


@pytest.fixture(scope="module")
def epoch() -> text.Epoch:
    return text.Epoch(sms.load())


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("  Hello\tWORLD \n", "hello world"),
        ("win £1,000.50 now", "win £ <number> now"),
        ("see http://x.com/a?b or www.y.org!", "see <address> or <address>"),
        ("1 &lt;#&gt; &amp; more", "<number> <number> & more"),
        ("I\N{RIGHT SINGLE QUOTATION MARK}m", "i'm"),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER A}\N{LATIN SMALL LIGATURE FI}", "afi"),
        ("", ""),
    ],
)
def test_clean(raw: str, cleaned: str) -> None:
    assert text.clean(raw) == cleaned


def test_words_keeps_marks_and_placeholders() -> None:
    assert text.words("don't <number> it's, é!") == ["don't", "<number>", "it's", ",", "é", "!"]


def test_the_vocabulary_does_not_depend_on_the_order_of_equals() -> None:
    assert text.Vocabulary(["b a", "c c"]).words == text.Vocabulary(["c a c b"]).words


def test_rare_words_are_unknown() -> None:
    vocabulary = text.Vocabulary(["a a a b b c"], size=4)
    assert vocabulary.words == ("<pad>", "<unknown>", "a", "b")
    assert vocabulary.encode("a c b") == [2, text.UNKNOWN, 3]
    assert vocabulary.decode([2, 1, 3, 0, 0]) == "a <unknown> b"


@pytest.mark.parametrize("kind", ["clean_batch", "token_batch"])
def test_an_epoch_has_every_message_exactly_once(epoch: text.Epoch, kind: str) -> None:
    indexes = np.concatenate([getattr(epoch, kind)(n)["index"] for n in range(len(epoch))])
    assert sorted(indexes[indexes >= 0]) == list(range(sms.MESSAGES))
    assert (indexes < 0).sum() == len(epoch) * text.BATCH - sms.MESSAGES
    spam = sum(int(getattr(epoch, kind)(n)["spam"].sum()) for n in range(len(epoch)))
    assert spam == 747


def test_no_message_is_cut_short_as_text(epoch: text.Epoch) -> None:
    assert max(len(each.encode()) for each in epoch.cleaned) <= text.TEXT_NBYTES
    for number in range(0, len(epoch), 50):
        batch = epoch.clean_batch(number)
        for row, index in enumerate(batch["index"]):
            written = bytes(batch["text"][row, : batch["length"][row]]).decode()
            assert written == epoch.cleaned[index]


def test_tokens_are_the_first_words_then_filling(epoch: text.Epoch) -> None:
    batch = epoch.token_batch(0)
    assert batch["tokens"].shape == (text.BATCH, text.TOKENS)
    for row, index in enumerate(batch["index"]):
        ids = epoch.vocabulary.encode(epoch.cleaned[index])[: text.TOKENS]
        assert list(batch["tokens"][row, : batch["length"][row]]) == ids
        assert not batch["tokens"][row, batch["length"][row] :].any()


def test_two_epochs_of_the_same_messages_are_equal() -> None:
    messages = [Message(False, f"word{n} again") for n in range(text.BATCH + 1)]
    one, other = text.Epoch(messages), text.Epoch(list(messages))
    assert len(one) == 2
    for number in range(2):
        for name, array in one.token_batch(number).items():
            np.testing.assert_array_equal(array, other.token_batch(number)[name])
    assert list(one.token_batch(1)["index"]) == [text.BATCH] + [-1] * (text.BATCH - 1)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_batch_outside_the_epoch_is_refused(number: int) -> None:
    epoch = text.Epoch([Message(False, "a")] * (text.BATCH + 1))
    with pytest.raises(IndexError, match="0 to 1"):
        epoch.token_batch(number)
