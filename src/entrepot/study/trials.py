"""A trial's record: what it says, and which of several attempts speaks. Pure.

A trial lives at ``<study>/trial/<n>/<attempt>``, as one record that is written again as it goes.
Its meta is text::

    state   running, done, pruned, failed or released
    point   the point, as str(point) has it
    score   a number, or {"name": number} as JSON; absent while there is none
    who     who runs it
    goal    min, max, or {"name": "min"} as JSON
    beat    goes up each time that the record is written
    tail    the best so far at up to 64 numbers of reports
    space   the digest of the point's space
    curve   all reports, where they fit; else the record's blob has them
    because why it was pruned or failed
    took    seconds from the claim to this writing, by the writer's own clock
    kept    the digest of the trial's checkpoint
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat

import msgspec

from entrepot.errors import ConfigurationError, ScoreNotFinite, StudyError
from entrepot.store.record import EMPTY, Record
from entrepot.study.curves import Tail, number_of
from entrepot.study.goals import Goal, Score, checked_goal
from entrepot.study.unseen import unseen_in

RUNNING = "running"
DONE = "done"
PRUNED = "pruned"
FAILED = "failed"
RELEASED = "released"

STATES = (RUNNING, DONE, PRUNED, FAILED, RELEASED)
FINISHED = frozenset({DONE, PRUNED, FAILED})
"""States that end a trial."""

CURVE_CHARS = 2048
"""A curve whose text is longer than this is a blob."""

BECAUSE_CHARS = 2000
WHO_CHARS = 200

_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")


class Said(msgspec.Struct, frozen=True, gc=False):
    """A record's meta, each entry as the text that it is."""

    state: str = ""
    point: str = ""
    score: str = ""
    who: str = ""
    goal: str = ""
    beat: str = "0"
    tail: str = "0"
    space: str = ""
    curve: str = ""
    because: str = ""
    took: str = ""
    kept: str = ""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt of a trial, as its record has it.

    :ivar name: the record's.
    :ivar digest: the blob with the whole curve, where the record has not got it.
    :ivar meta: what it says.
    :ivar when: when the record was written last, in seconds since 1970 on the store's clock.
    :ivar writer: by which process.
    :ivar nonce: another each time that it is written.
    """

    name: str
    digest: str
    meta: Said
    when: float
    writer: str
    nonce: str

    @property
    def trial(self) -> int:
        """The trial's number."""
        return int(self.name.rsplit("/", 2)[1])

    @property
    def attempt(self) -> int:
        """Which attempt of it, from 0."""
        return int(self.name.rsplit("/", 1)[1])

    @property
    def state(self) -> str:
        """One of :data:`STATES`."""
        return self.meta.state

    @property
    def finished(self) -> bool:
        """Whether it is done, pruned or failed."""
        return self.meta.state in FINISHED

    @property
    def score(self) -> Score | None:
        """What it reached."""
        return read_score(self.meta.score)

    @property
    def goal(self) -> Goal | None:
        """What better means, where somebody said so."""
        return read_goal(self.meta.goal)

    @property
    def tail(self) -> Tail:
        """Its curve in short."""
        return Tail.read(self.meta.tail)

    @property
    def took_s(self) -> float:
        """Seconds from its claim to when it was written last."""
        try:
            return float(self.meta.took)
        except ValueError:
            return 0.0


def attempt_of(record: Record, study: str) -> Attempt | None:
    """The attempt that a record is of, or None if it is none of the study's."""
    if not is_trial(record.name, study):
        return None
    try:
        said = msgspec.convert(record.meta, Said)
    except msgspec.ValidationError:
        return None
    made = Attempt(record.name, record.digest, said, record.when, record.writer, record.nonce)
    return made if is_sound(made) else None


def is_trial(name: str, study: str) -> bool:
    """Whether it is ``<study>/trial/<n>/<attempt>``."""
    parts = name.rsplit("/", 2)
    return (
        len(parts) == 3
        and parts[0] == f"{study}/trial"
        and _NUMBER.fullmatch(parts[1]) is not None
        and _NUMBER.fullmatch(parts[2]) is not None
    )


def is_optunas(record: Record) -> bool:
    """Whether ``EntrepotStorage`` wrote it: a trial of a study that is read through Optuna."""
    return "is" in record.meta and "state" not in record.meta


def is_sound(attempt: Attempt) -> bool:
    """Whether all that it says can be read; what somebody wrote by hand may not."""
    said = attempt.meta
    if said.state not in STATES:
        return False
    try:
        read_score(said.score)
        if said.goal not in ("", "min", "max"):
            read_goal(said.goal)
        if said.tail != "0":
            Tail.read(said.tail)
    except (ValueError, TypeError):
        return False
    return said.state != DONE or said.score != ""


def trial_name(study: str, trial: int, attempt: int) -> str:
    """The name of an attempt's record."""
    return f"{study}/trial/{trial}/{attempt}"


def speaks(attempt: Attempt, other: Attempt) -> bool:
    """Whether ``attempt`` speaks for its trial where ``other`` is another of it.

    The highest does; but one that is finished is never hidden by a later one that is not.
    """
    if attempt.finished != other.finished:
        return attempt.finished
    return attempt.attempt > other.attempt


def speaking(attempts: Iterable[Attempt]) -> Attempt | None:
    """The attempt of a trial that speaks for it."""
    found: Attempt | None = None
    for attempt in attempts:
        if found is None or speaks(attempt, found):
            found = attempt
    return found


def silent_attempts(attempts: Iterable[Attempt]) -> int:
    """How many were begun and not handed back."""
    return sum(1 for attempt in attempts if attempt.state != RELEASED)


# --- texts ------------------------------------------------------------------------------


def write_score(score: Score | None) -> str:
    """A score as text: exact, and NaN and infinities as words."""
    if score is None:
        return ""
    if isinstance(score, Mapping):
        return json.dumps({name: repr(float(value)) for name, value in score.items()})
    return repr(float(score))


def read_score(said: str) -> Score | None:
    """The inverse of :func:`write_score`.

    :raises ValueError: it was not written by it.
    """
    if not said:
        return None
    if said[0] != "{":
        return float(said)
    return {str(name): float(value) for name, value in json.loads(said).items()}


def write_goal(goal: Goal | None) -> str:
    """A goal as text."""
    if goal is None or isinstance(goal, str):
        return goal or ""
    return json.dumps(dict(goal))


def read_goal(said: str) -> Goal | None:
    """The inverse of :func:`write_goal`.

    :raises ValueError: it was not written by it.
    """
    if not said:
        return None
    return checked_goal(json.loads(said) if said[0] == "{" else said)


def write_curve(reports: Sequence[float]) -> str:
    """Reports as text, each by ``repr``; NaN and infinities are words."""
    return ",".join(map(repr, reports))


def read_curve(said: str) -> list[float]:
    """The inverse of :func:`write_curve`.

    :raises ValueError: it was not written by it.
    """
    return [float(one) for one in said.split(",")] if said else []


def curve_blob(reports: Sequence[float], because: str) -> bytes:
    """A long curve, and why it stopped, as JSON; numbers are text, since NaN is none of JSON's."""
    return json.dumps({"reports": [repr(one) for one in reports], "because": because}).encode()


def read_curve_blob(data: bytes) -> list[float]:
    """The reports of :func:`curve_blob`.

    :raises ValueError: it was not written by it.
    """
    try:
        return [float(one) for one in json.loads(data)["reports"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no curve: {error}") from None


# --- what was typed ---------------------------------------------------------------------


def checked_who(me: Any) -> str:
    """``me``, if it can say who runs a trial.

    :raises ConfigurationError: it is empty or long, or has signs that cannot be seen.
    """
    if not isinstance(me, str) or not 0 < len(me) <= WHO_CHARS:
        raise ConfigurationError(
            f"me says who runs a trial, in 1 to {WHO_CHARS} characters, got {me!r:.100}"
        )
    sign = unseen_in(me)
    if sign is not None:
        raise ConfigurationError(
            f"me says who runs a trial, and the sign {sign!a} in {me!r:.220} ends a line, or "
            f"cannot be seen or written; choose another name"
        )
    return me


def checked_state(state: Any) -> str:
    """``state``, if a trial can be in it.

    :raises StudyError: it cannot.
    """
    if state not in STATES:
        raise StudyError(f"a trial is {', '.join(STATES[:-1])} or {STATES[-1]}, got {state!r:.60}")
    return str(state)


def checked_score(score: Any, goal: Goal | None, state: str) -> Score | None:
    """``score``, if it is one of the goal's, and finite for a trial that is done.

    :raises ScoreNotFinite: the trial is done, and it is not finite.
    :raises StudyError: it is not one of the goal's.
    """
    if score is None:
        if state == DONE and isinstance(goal, Mapping):
            each = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: ..." for name in goal)
            raise StudyError(
                f"a trial that is done has a score for each of its goals, whatever it reported; "
                f"set trial.score = {{{each}}}"
            )
        if state == DONE:
            raise StudyError("a trial that is done has a score; give one, or report numbers")
        return None
    names = goal if isinstance(goal, Mapping) else None
    if names is not None or isinstance(score, Mapping):
        if names is None or not isinstance(score, Mapping) or set(score) != set(names):
            wanted = f"a number for each of {', '.join(names)}" if names else "one number"
            raise StudyError(f"the score is {score!r:.100}, and the goal wants {wanted}")
        several = {name: number_of(score[name]) for name in names}
        found: Score = several
        values = list(several.values())
    else:
        found = number_of(score)
        values = [found]
    if state == DONE and not all(map(math.isfinite, values)):
        raise ScoreNotFinite(
            f"the score is {score!r:.100}, and a trial that is done has a finite one; report it as "
            f"failed or pruned"
        )
    return found


def checked_reports(reports: Iterable[SupportsFloat]) -> list[float]:
    """``reports`` as floats.

    :raises ConfigurationError: one is not a number.
    """
    return [number_of(report) for report in reports]


def cut(text: str, most: int) -> str:
    """``text``, or its beginning, as something that can be written."""
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def meta_of(said: Said) -> dict[str, str]:
    """The record's meta: entries that say nothing are left out."""
    return {
        name: value
        for name in Said.__struct_fields__
        if (value := getattr(said, name)) not in ("", None)
    }


def curve_of(attempt: Attempt, blob: bytes | None) -> list[float]:
    """All that the attempt reported; ``blob`` is that of its digest.

    :raises ValueError: the record, or the blob, does not say it in a way that can be read.
    """
    if attempt.meta.curve or attempt.digest == EMPTY or blob is None:
        return read_curve(attempt.meta.curve)
    return read_curve_blob(blob)
