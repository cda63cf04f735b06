"""What the records of a trial of Optuna's say, and the trial that they make together. Pure.

A trial has several records, its *slots*, and nobody ever writes one that he did not claim::

    <root>/<study>/trial/<n>/0     claimed by who makes the trial: the number is his alone
                             1     claimed by who takes up one that waits
                             2     claimed by who finishes it
                             3...  claimed by who writes beside or after the ones before

What a later slot says hides what an earlier one says; the finish is always the last. A slot that is
long is left as it is, and the next is claimed, so that no write is long however long the trial is.

Their meta is text, most of it JSON as Python's ``json`` has it, with NaN and infinities as words::

    is      RUNNING, WAITING, COMPLETE, PRUNED or FAIL; absent where a slot does not change it
    start   when it began, end: when it ended; ISO 8601 in UTC
    values  a list of numbers
    params  {name: [Optuna's internal number, its distribution as JSON]}
    user    attributes by name; system: the same of Optuna's own
    steps   {step: reported number}
    beat    goes up as long as its process lives
    body    "blob", where all but is and beat are in the record's blob
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

from entrepot.store.record import EMPTY, Record

MADE, TAKEN, FINISHED, FURTHER = 0, 1, 2, 3
"""Slots; those from ``FURTHER`` on are anybody's."""

FULL_CHARS = 32_000
"""A slot that says so much is not written again."""

BLOB_CHARS = 60_000
"""A body of more is a blob: escaped in a record, it might be four times as long."""


NONE: Mapping[Any, Any] = MappingProxyType({})


class Body(msgspec.Struct, frozen=True):
    """What one slot says. Its dictionaries are never changed, but replaced."""

    state: str = ""
    start: str = ""
    end: str = ""
    values: list[float] | None = None
    params: Mapping[str, tuple[float, str]] = NONE
    user: Mapping[str, Any] = NONE
    system: Mapping[str, Any] = NONE
    steps: Mapping[int, float] = NONE
    beat: int = 0

    def with_param(self, name: str, internal: float, distribution: BaseDistribution) -> Body:
        said = (float(internal), distribution_to_json(distribution))
        return replace(self, params={**self.params, name: said})

    def with_user(self, key: str, value: Any) -> Body:
        return replace(self, user={**self.user, key: plain(value)})

    def with_system(self, key: str, value: Any) -> Body:
        return replace(self, system={**self.system, key: plain(value)})

    def with_step(self, step: int, value: float) -> Body:
        return replace(self, steps={**self.steps, int(step): float(value)})


def plain(value: Any) -> Any:
    """A copy of what JSON can say.

    :raises TypeError: it cannot say this.
    """
    return json.loads(json.dumps(value))


def started_now() -> Body:
    """A running trial that has nothing yet."""
    return Body(TrialState.RUNNING.name, start=text_of(datetime.now()))


def body_of(trial: FrozenTrial) -> Body:
    """All that a trial of Optuna's says."""
    return Body(
        trial.state.name,
        text_of(trial.datetime_start),
        text_of(trial.datetime_complete),
        None if trial.values is None else [float(value) for value in trial.values],
        {
            name: (
                float(trial.distributions[name].to_internal_repr(value)),
                distribution_to_json(trial.distributions[name]),
            )
            for name, value in trial.params.items()
        },
        plain(trial.user_attrs),
        plain(trial.system_attrs),
        {int(step): float(value) for step, value in trial.intermediate_values.items()},
    )


def text_of(when: datetime | None) -> str:
    """A time of Optuna's, which is local and says no zone, as text."""
    return "" if when is None else when.astimezone(UTC).isoformat(timespec="microseconds")


def time_of(text: str) -> datetime | None:
    """The inverse of :func:`text_of`."""
    if not text:
        return None
    return datetime.fromtimestamp(datetime.fromisoformat(text).timestamp())


# --- records ----------------------------------------------------------------------------


def written(body: Body) -> tuple[dict[str, str], bytes | None]:
    """The meta of a slot's record, and its blob where it needs one."""
    said = {name: text for name, text in (("start", body.start), ("end", body.end)) if text}
    if body.values is not None:
        said["values"] = json.dumps(body.values)
    for name, entries in (
        ("params", body.params),
        ("user", body.user),
        ("system", body.system),
        ("steps", body.steps),
    ):
        if entries:
            said[name] = json.dumps(entries)
    head = {"is": body.state} if body.state else {}
    if body.beat:
        head["beat"] = str(body.beat)
    if length(said) <= BLOB_CHARS:
        return head | said, None
    return head | {"body": "blob"}, json.dumps(said).encode()


def length(meta: Mapping[str, str]) -> int:
    """Characters of a meta."""
    return sum(map(len, meta.values()))


def in_blob(record: Record) -> bool:
    """Whether the record's blob is needed to read it."""
    return record.digest != EMPTY


def read(record: Record, blob: bytes | None) -> Body | None:
    """The slot that a record is, or None if it is none.

    :param blob: that of its digest, or None where it has none or lost it.
    """
    said = record.meta
    try:
        if said.get("body") == "blob":
            if blob is None:
                return None
            said = {**json.loads(blob), **said}
        values = said.get("values")
        params = said.get("params")
        steps = said.get("steps")
        return Body(
            said.get("is", ""),
            said.get("start", ""),
            said.get("end", ""),
            [float(value) for value in _parsed(values)] if values else None,
            {key: (float(one), str(two)) for key, (one, two) in _parsed(params).items()}
            if params
            else NONE,
            dict(_parsed(said["user"])) if "user" in said else NONE,
            dict(_parsed(said["system"])) if "system" in said else NONE,
            {int(step): float(value) for step, value in _parsed(steps).items()} if steps else NONE,
            int(said.get("beat", "0")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # NaN and infinities are Python's alone
        return json.loads(text)


@lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    # One object for all trials that have it: whoever reads a trial does not change it.
    return json_to_distribution(text)


# --- the trial --------------------------------------------------------------------------


def frozen(trial_id: int, number: int, slots: Mapping[int, Body]) -> FrozenTrial:
    """The trial that the slots make; ``MADE`` is among them.

    :raises ValueError, TypeError, LookupError: they were not written by :func:`written`.
    """
    bodies = [slots[slot] for slot in sorted(slots, key=_rank)]
    state = start = end = ""
    values: list[float] | None = None
    params: dict[str, tuple[float, str]] = {}
    user: dict[str, Any] = {}
    system: dict[str, Any] = {}
    steps: dict[int, float] = {}
    for body in bodies:
        state, start, end = body.state or state, body.start or start, body.end or end
        values = values if body.values is None else body.values
        params.update(body.params)
        user.update(body.user)
        system.update(body.system)
        steps.update(body.steps)
    distributions = {name: _distribution(text) for name, (_, text) in params.items()}
    return FrozenTrial(
        number=number,
        trial_id=trial_id,
        state=TrialState[state],
        value=None,
        values=values,
        datetime_start=time_of(start),
        datetime_complete=time_of(end),
        params={
            name: distributions[name].to_external_repr(internal)
            for name, (internal, _) in params.items()
        },
        distributions=distributions,
        user_attrs=user,
        system_attrs=system,
        intermediate_values=steps,
    )


def lost(trial_id: int, number: int) -> FrozenTrial:
    """What stands for a trial of which nothing can be read, since numbers have no gaps."""
    return FrozenTrial(
        number=number,
        trial_id=trial_id,
        state=TrialState.FAIL,
        value=None,
        datetime_start=None,
        datetime_complete=None,
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
    )


def last(slots: Iterable[int]) -> int:
    """The slot, but for the finish, that hides all others."""
    return max((slot for slot in slots if slot != FINISHED), default=-1)


def _rank(slot: int) -> float:
    return float("inf") if slot == FINISHED else slot
