"""A round that clients finish together, with nobody in charge.

Everybody puts what it learnt into the store and leaves with the mean of all. Whoever finds the
round complete claims the averaging; a claim is won once. If the winner dies, another claims the
next attempt, and what is published first is the mean that all leave with::

    <run>/round/<r>/client-<k>      what client k learnt; its size stands in the record
    <run>/round/<r>/averaging-<n>   who began the nth averaging
    <run>/round/<r>/average         the mean, or why there can be none

All of it is claimed and none is written again, so that a mean is of just what its record says.
"""

from __future__ import annotations

import logging
import os
import random as randoms
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from entrepot.arguments import shown
from entrepot.errors import (
    ConfigurationError,
    CorruptBlob,
    FederationError,
    MissingBlob,
    RoundIncomplete,
    RunReused,
    StoreUnreachable,
)
from entrepot.federation.fedavg import (
    Averaging,
    Path,
    State,
    check_alike,
    check_finite,
    checked_sizes,
    entries_of,
    is_size,
    kinds_of,
    nested,
)
from entrepot.federation.packing import pack_state, unpack_state
from entrepot.logs import why_of
from entrepot.store.record import EMPTY
from entrepot.study.checks import number, whole
from entrepot.study.naming import wrong_with

if TYPE_CHECKING:
    from entrepot.store.base import Store
    from entrepot.store.cursor import Cursor
    from entrepot.store.record import Record

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""Seconds after which an averaging that has not come to its end is begun by another as well; twice
as many after the second."""

MOST_AVERAGINGS = 3
"""After so many that fell silent, the round is given up."""

FIRST_S, MOST_S = 0.02, 1.0
"""Seconds between two looks: the first time, and at most."""

RUN_CHARS = 200
REFUSED_CHARS = 2000


def gather(
    store: Store | str | os.PathLike[str],
    what: State,
    *,
    run: str,
    round: int,
    clients: int,
    mine: int,
    size: float | None = None,
    within: float = 600.0,
    quorum: int | None = None,
    resume: bool = False,
    job: str = "",
    patience: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    random: Callable[[], float] = randoms.random,
) -> dict[str, Any]:
    """Put in what this client learnt, wait for the others, and leave with the mean of all::

        for round in range(20):
            train(net)
            state = gather(store, net.state_dict(), run="mnist", round=round, clients=4, mine=rank)
            net.load_state_dict(state)

    All clients of a round leave with the same bits. Who comes when the mean is there already leaves
    with it at once, and is not part of it.

    :param store: a store, or what :meth:`entrepot.store.Store.open` takes.
    :param what: what ``state_dict()`` gives: arrays or tensors by name.
    :param run: the name of this training run; no other in the store has it.
    :param clients: how many clients there are.
    :param mine: which of them this is, from 0.
    :param size: how many samples this client saw, 0 or more: what its part weighs. Where one
        client does not say, all weigh the same.
    :param within: seconds to wait for the others.
    :param quorum: go on with so many clients when ``within`` is over.
    :param resume: this client ran before and goes on: rounds that it took part in are as they were.
    :param job: what all clients of this run have in common and those of no other have, such as
        Slurm's job id: a run of the same name that has another is refused.
    :param patience: seconds that an averaging may take before another client begins it as well.
    :param clock: seconds, going up. :param sleep: waits. :param random: from 0 to 1.
    :return: the mean, with the names that ``what`` has, on its devices.
    :raises RoundIncomplete: clients did not turn up; ``missing`` has their numbers.
    :raises RunReused: this client took part in this round before, or there is a run of this name
        with another number of clients, or of another job.
    :raises FederationError: what a client sent cannot be averaged; the message names client and
        key, and all clients are told.
    :raises ConfigurationError: an argument cannot be.
    """
    place = Place(
        f"{_checked_run(run)}/round/{whole('round', round, 0)}/",
        f"round {round} of {run!r}",
        whole("clients", clients, 1),
        whole("mine", mine, 0, clients - 1),
        job,
    )
    if size is not None and not is_size(size):
        raise ConfigurationError(
            f"size is {shown(size)}; it is how many samples were seen, 0 or more"
        )
    if quorum is not None:
        whole("quorum", quorum, 1, clients)
    waiting = Waiting(number("within", within, 0), quorum, number("patience", patience, 0))
    entries = dict(entries_of(what, mine))
    kinds = kinds_of(entries, mine)
    if not entries:
        raise FederationError(f"client {mine} sent a state without keys; send a model")
    check_finite(entries, kinds, mine)
    with _opened(store) as opened:
        meeting = Round(opened, place, resume=resume, clock=clock)
        if meeting.sends():
            meeting.send(pack_state(entries), size)
        average = meeting.wait(waiting, sleep, random)
    check_alike(kinds, f"client {mine}", kinds_of(average, mine), f"the average of {place.said}")
    for path, kind in kinds.items():
        if kind.device is not None:
            average[path] = average[path].to(kind.device)
    return nested(what, average)


def _opened(store: Store | str | os.PathLike[str]) -> AbstractContextManager[Store]:
    """The store, open for the round; one that was given open stays so."""
    from entrepot.store.base import Store

    return nullcontext(store) if isinstance(store, Store) else Store.open(store)


def _checked_run(run: Any) -> str:
    if not isinstance(run, str) or not 0 < len(run) <= RUN_CHARS or not all(run.split("/")):
        raise ConfigurationError(
            f"a run's name is text of 1 to {RUN_CHARS} characters without a slash at an end, got "
            f"{run!r:.100}"
        )
    why = wrong_with(run)
    if why is not None:
        raise ConfigurationError(f"no run can be named {run!r:.220}: {why}; choose another name")
    return run


@dataclass(frozen=True)
class Place:
    """Which round it is, of how many, and who we are in it."""

    prefix: str
    said: str
    clients: int
    mine: int
    job: str


@dataclass(frozen=True)
class Waiting:
    """For how long, and for whom."""

    within_s: float
    quorum: int | None
    patience_s: float


class Round:
    """One round, as one client sees it. One listing a look, whatever the number of clients."""

    def __init__(
        self, store: Store, place: Place, *, resume: bool, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._place = place
        self._resume = resume
        self._clock = clock
        self._cursor: Cursor | None = None
        self._present: dict[int, Record] = {}
        self._averagings = 0
        self._since = clock()
        self._average: Record | None = None
        self._began = clock()

    # --- what is there ------------------------------------------------------------------

    def look(self) -> None:
        """Take note of what is new.

        :raises RunReused: it is another run's.
        """
        changes = self._store.changes(self._place.prefix, self._cursor)
        self._cursor = changes.cursor
        for record in changes.records:
            leaf, _, which = record.name.removeprefix(self._place.prefix).partition("-")
            if leaf == "average":
                self._check_run(record, "its average")
                self._average = record
            elif leaf == "client" and which.isdecimal():
                self._check_run(record, f"client {which}")
                self._present[int(which)] = record
            elif leaf == "averaging" and which.isdecimal():
                self._note_averaging(int(which) + 1)

    def _note_averaging(self, count: int) -> None:
        if count > self._averagings:
            self._averagings, self._since = count, self._clock()

    def _check_run(self, record: Record, whose: str) -> None:
        place, meta = self._place, record.meta
        if meta.get("clients") != str(place.clients):
            raise RunReused(
                f"{place.said} has {meta.get('clients')} clients as {whose} says, and client "
                f"{place.mine} was told {place.clients}; give each run a name of its own"
            )
        if meta.get("job", "") != place.job and not self._resume:
            raise RunReused(
                f"{place.said} is of the job {meta.get('job', '')!r} as {whose} says, and this is "
                f"{place.job!r}; give each run a name of its own, or resume=True to go on with it"
            )

    def _missing(self) -> list[int]:
        return [one for one in range(self._place.clients) if one not in self._present]

    # --- what we do ---------------------------------------------------------------------

    def sends(self) -> bool:
        """Whether there is something to send: it is not done before, nor too late.

        :raises RunReused: we sent something before, and do not resume.
        """
        self.look()
        if self._place.mine in self._present:
            self._check_resumes()
            return False
        return self._average is None

    def send(self, data: bytearray, size: float | None) -> None:
        """Put in what this client learnt."""
        meta = self._meta()
        if size is not None:
            meta["size"] = repr(float(size))
        digest = self._store.put(data)
        if not self._claim(f"client-{self._place.mine}", digest, meta):
            self._check_resumes()

    def _check_resumes(self) -> None:
        if not self._resume:
            raise RunReused(
                f"client {self._place.mine} has sent {self._place.said} before; give each run a "
                f"name and each client a number of its own, or resume=True to go on with the run"
            )

    def _meta(self) -> dict[str, str]:
        meta = {"clients": str(self._place.clients), "by": str(self._place.mine)}
        return meta | ({"job": self._place.job} if self._place.job else {})

    def _claim(self, leaf: str, digest: str, meta: Mapping[str, str]) -> bool:
        return self._store.claim(self._place.prefix + leaf, digest, meta)

    def wait(
        self, waiting: Waiting, sleep: Callable[[float], None], random: Callable[[], float]
    ) -> dict[Path, Any]:
        """The mean, once it is there."""
        deadline = self._began + waiting.within_s
        pause = FIRST_S
        self._try_look(deadline)
        while self._average is None:
            missing = self._missing()
            now = self._clock()
            is_late = now >= deadline
            enough = not missing or (
                is_late and waiting.quorum is not None and len(self._present) >= waiting.quorum
            )
            silent_at = self._since + waiting.patience_s * 2.0 ** (self._averagings - 1)
            waits = self._averagings > 0 and now < silent_at
            if enough and not waits:
                average = self._make_average()
                if average is not None:
                    return average
            elif is_late and missing and not waits:
                self._give_up(missing, waiting)
            else:
                until = silent_at if waits else deadline
                sleep(min(pause * (0.5 + random() / 2), max(until - now, FIRST_S / 4)))
                pause = min(pause * 1.5, MOST_S)
            self._try_look(deadline)
        return self._read_average(self._average)

    def _try_look(self, deadline: float) -> None:
        try:
            self.look()
        except StoreUnreachable as fault:
            if self._clock() >= deadline:
                raise
            logger.warning(
                "the round cannot be seen just now: %s", why_of(fault), extra={"why": str(fault)}
            )

    def _give_up(self, missing: list[int], waiting: Waiting) -> None:
        here = f"{len(self._present)} of {self._place.clients} are there"
        if waiting.quorum is not None:
            here += f", and the quorum is {waiting.quorum}"
        raise RoundIncomplete(
            f"{self._place.said}: client {', '.join(map(str, missing))} never turned up within "
            f"{waiting.within_s:g} s; {here}. Start them, wait longer with within=, or go on "
            f"without them with quorum=",
            missing,
        )

    # --- the mean -----------------------------------------------------------------------

    def _make_average(self) -> dict[Path, Any] | None:
        """Average, if that is ours to do; None when it is not."""
        if self._averagings >= MOST_AVERAGINGS:
            raise FederationError(
                f"{self._place.said}: {self._averagings} clients began the average and none came "
                f"to its end; see why they died, and begin the round again under another name"
            )
        if not self._claim(f"averaging-{self._averagings}", EMPTY, self._meta()):
            self._note_averaging(self._averagings + 1)
            return None
        self._note_averaging(self._averagings + 1)
        took = sorted(self._present)
        meta = self._meta() | {"took": ",".join(map(str, took))}
        try:
            means = self._means(took)
        except FederationError as refused:
            # So that nobody waits for what cannot be.
            said = str(refused)[:REFUSED_CHARS]
            self._claim("average", EMPTY, meta | {"refused": said})
            raise
        data = pack_state(means)
        if not self._claim("average", self._store.put(data), meta):
            return None  # who was thought dead was only slow: its mean is what all leave with
        return unpack_state(bytes(data))

    def _means(self, took: list[int]) -> dict[Path, Any]:
        sizes = [self._size(client) for client in took]
        known = [size for size in sizes if size is not None]
        if known and len(known) < len(took):
            silent = ", ".join(str(k) for k, size in zip(took, sizes, strict=True) if size is None)
            logger.warning(
                "all clients weigh the same, since not all say what they saw: not client %s",
                silent,
                extra={"silent": silent},
            )
            known = []
        weights = checked_sizes(known or None, took)
        averaging = Averaging(dict(zip(took, weights, strict=True)))
        for client in took:
            averaging.add(client, self._sent(client))
        return averaging.means()

    def _size(self, client: int) -> float | None:
        said = self._present[client].meta.get("size")
        if said is None:
            return None
        try:
            return float(said)
        except ValueError:
            raise FederationError(f"client {client} says a size of {said[:60]!r}") from None

    def _sent(self, client: int) -> dict[Path, Any]:
        try:
            return unpack_state(self._store.get(self._present[client].digest))
        except (CorruptBlob, MissingBlob, FederationError) as fault:
            raise FederationError(f"what client {client} sent cannot be read: {fault}") from fault

    def _read_average(self, record: Record) -> dict[Path, Any]:
        refused = record.meta.get("refused")
        if refused is not None:
            raise FederationError(refused)
        return unpack_state(self._store.get(record.digest))
