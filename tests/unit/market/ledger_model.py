"""The market's rules once more, plain and slow, to hold the ledger against.

Written from the promises of ``docs/protocol.md``: every question is answered by looking at
everything, and patterns are matched with ``re``. Where the rules leave a choice (which of several
ready suppliers is given an order, and under what lease), the model takes the ledger's, and says
whether it was allowed; all else it predicts.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, count
from typing import Any

from entrepot.market import events as ev
from entrepot.market.protocol import Attempt, Delivery, Order, Result, WorkItem
from entrepot.settings import BrokerSettings

ANY_SENTENCE = "..."
"""Stands for words that are for people, of which the rules say nothing."""

BAD_PATTERNS = frozenset({"(?=a)a", "(", r"a\Z"})
"""Those of the patterns used here that RE2 refuses."""


@dataclass(eq=False)
class Job:
    """An order, as the model sees it."""

    buyer: bytes
    asked: Order
    version: int
    contract: str | None
    placed_at: float
    place: tuple[int, int, int]
    """Where in the queue: less is sooner."""
    state: str = "waiting"
    touched: bool = False
    cancelled: bool = False
    failed_by: set[Maker] = field(default_factory=set)
    failures: int = 0
    losses: int = 0
    attempts: list[tuple[str, str]] = field(default_factory=list)
    maker: Maker | None = None
    dispatched_at: float = 0.0
    due: float | None = None
    patient_until: float = 0.0
    """Until when it waits for those who have not failed it, if some have."""


@dataclass(eq=False)
class Buyer:
    """A client."""

    session: bytes
    version: int
    name: str
    contract: str | None
    heard: float
    spoke: bool = False
    """It has said something but HELLO."""
    hello_seq: int = 0
    away_since: float | None = None
    jobs: dict[str, Job] = field(default_factory=dict)

    def hear(self, now: float) -> None:
        self.heard = now
        self.spoke = True


@dataclass(eq=False)
class Maker:
    """A supplier. One that comes back after it left or was lost is another."""

    session: bytes
    version: int
    name: str
    heard: float
    hello_seq: int = 0
    patterns: tuple[str, ...] = ()
    contracts: dict[str, str] = field(default_factory=dict)
    credit: int = 1
    exclusive: bool = False
    asked: bool = False
    """It has said READY; with version 1, since it was last given an order."""
    suspect: bool = False
    draining: bool = False
    cancels: bool = False
    away_since: float | None = None
    held: dict[int, Job] = field(default_factory=dict)
    served: int = 0

    def matches(self, job: Job, contract: str | None) -> bool:
        if self.version != job.version:
            return False
        for pattern in self.patterns:
            offered = self.contracts.get(pattern)
            agreed = offered is None or contract is None or offered == contract
            if agreed and fullmatch(pattern, job.asked.product_id):
                return True
        return False

    @property
    def takes(self) -> bool:
        idle = self.asked and len(self.held) < self.credit
        return idle and not self.suspect and not self.draining and self.away_since is None


@cache
def fullmatch(pattern: str, product_id: str) -> bool:
    return re.fullmatch(pattern, product_id, re.ASCII) is not None


class Model:
    """All that is known of the market, and what must follow from each event."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.buyers: dict[bytes, Buyer] = {}
        self.makers: dict[bytes, Maker] = {}
        self.outcomes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.accepted = 0
        self.stale = 0
        self.away: list[Buyer | Maker] = []
        self._sequence = count()
        self._effects: list[ev.Effect] = []
        self._given: dict[bytes, deque[WorkItem]] = {}
        self._busy_with: Maker | None = None
        self._now = 0.0

    # --- what an event leads to ---------------------------------------------------------

    def apply(
        self, event: ev.Event, now: float, given: dict[bytes, deque[WorkItem]]
    ) -> list[ev.Effect]:
        """The effects that must be seen, less the assignments: those are checked and used up."""
        self._now = now
        self._effects = []
        self._given = given
        self._revoked: dict[bytes, list[int]] = {}
        name = re.sub(r"(?<=[a-z\d])(?=[A-Z])", "_", type(event).__name__).lower()
        getattr(self, f"_{name}")(event)
        self._effects += [ev.Revoke(session, leases) for session, leases in self._revoked.items()]
        return self._effects

    def jobs(self) -> Iterator[Job]:
        return chain.from_iterable(buyer.jobs.values() for buyer in self.buyers.values())

    def waiting(self) -> list[Job]:
        return [job for job in self.jobs() if job.state == "waiting"]

    def may_take(self, maker: Maker, job: Job) -> bool:
        """Its patterns match, and it has not failed the order, or no other is left to try."""
        if not maker.matches(job, job.contract):
            return False
        return maker not in job.failed_by or not any(
            other.matches(job, job.contract) and not other.draining
            for other in self.makers.values()
            if other not in job.failed_by
        )

    def takers(self) -> list[Maker]:
        return [m for m in self.makers.values() if m.takes and m is not self._busy_with]

    def _dispatch(self) -> None:
        """While a ready supplier may take an order, the first such order is given to one."""
        while True:
            waiting = sorted(self.waiting(), key=lambda job: job.place)
            firsts = []
            for maker in self.takers():
                first = next((job for job in waiting if self.may_take(maker, job)), None)
                if first is not None:
                    firsts.append((maker, first))
            if not firsts:
                return
            for maker, job in firsts:
                items = self._given.get(maker.session)
                if items and _is_for(items[0], job):
                    self._give(maker, job, items.popleft().lease)
                    break
            else:
                wanted = [f"{j.asked.order_id} of {j.buyer!r} to {m.session!r}" for m, j in firsts]
                raise AssertionError(f"one of {wanted} was due; given was {self._given}")

    def _give(self, maker: Maker, job: Job, lease: int) -> None:
        assert lease, "no lease is 0"
        assert all(lease not in other.held for other in self.makers.values()), "a lease given twice"
        assert not job.cancelled
        job.state = "out"
        job.touched = True
        job.maker = maker
        job.dispatched_at = self._now
        maker.held[lease] = job
        maker.asked = maker.version > 1
        assert len(maker.held) <= maker.credit

    def _queue(self, job: Job, *, back: bool) -> None:
        job.state = "waiting"
        job.maker = None
        job.place = (-job.asked.priority, 0 if back else 1, next(self._sequence))
        job.patient_until = self._now + self.settings.elsewhere_s
        self._dispatch()

    def _end(self, job: Job, outcome: str) -> None:
        assert job.state != "ended"
        del self.buyers[job.buyer].jobs[job.asked.order_id]
        job.state = "ended"
        self.outcomes[outcome] += 1

    def _fail(self, job: Job, reason: str, lease: int = 0) -> None:
        self._end(job, "cancelled" if reason == "cancelled" else "failed")
        attempts = [Attempt(name, kind, ANY_SENTENCE) for name, kind in job.attempts]
        self._effects.append(
            ev.Fail(job.buyer, job.version, job.asked.order_id, reason, attempts, lease)
        )

    def _refuse(self, session: bytes, seq: int, code: str, order_ids: Iterable[str] = ()) -> None:
        self.refused[code] += 1
        self._effects.append(
            ev.Refuse(
                session=session,
                seq=seq,
                code=code,
                error=ANY_SENTENCE,
                order_ids=list(order_ids),
            )
        )

    # --- clients ------------------------------------------------------------------------

    def _client_joined(self, event: ev.ClientJoined) -> None:
        buyer = self.buyers.get(event.session)
        resumed = buyer is not None and buyer.spoke
        if buyer is not None and buyer.contract != event.contract:
            self._refuse(event.session, event.seq, "contract_mismatch")
            return
        if buyer is not None and event.seq < buyer.hello_seq:
            self._refuse(event.session, event.seq, "stale_hello")
            return
        if buyer is None:
            buyer = Buyer(event.session, event.version, event.name, event.contract, self._now)
            self.buyers[event.session] = buyer
        buyer.hello_seq = event.seq
        buyer.heard = self._now
        buyer.name = event.name
        self._back(buyer)
        for job in list(buyer.jobs.values()):
            if job.asked.order_id not in event.open_orders:
                self._withdraw(job)
        missing = [i for i in event.open_orders if i not in buyer.jobs]
        self._effects.append(ev.Welcome(event.session, resumed, missing))

    def _placed(self, event: ev.Placed) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is None:
            return
        buyer.hear(self._now)
        too_many = []
        for asked in event.orders:
            if asked.order_id in buyer.jobs:
                continue
            if (
                len(buyer.jobs) >= self.settings.max_open_orders
                or sum(1 for _ in self.jobs()) >= self.settings.max_open_orders_total
            ):
                too_many.append(asked.order_id)
                continue
            job = Job(buyer.session, asked, buyer.version, buyer.contract, self._now, (0, 0, 0))
            makers = self.makers.values()
            if any(m.matches(job, None) for m in makers) and not any(
                m.matches(job, job.contract) for m in makers
            ):
                self._refuse(event.session, event.seq, "contract_mismatch", [asked.order_id])
                continue
            if asked.deadline_s is not None:
                job.due = self._now + asked.deadline_s
            buyer.jobs[asked.order_id] = job
            self.accepted += 1
            self._queue(job, back=False)
        if too_many:
            self._refuse(event.session, event.seq, "too_many_orders", too_many)

    def _moved(self, event: ev.Moved) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is None:
            return
        buyer.hear(self._now)
        job = buyer.jobs.get(event.order_id)
        if job is None or job.state != "parked":
            self._refuse(event.session, event.seq, "unknown_order")
            return
        job.asked.address = event.address
        job.asked.offset = event.offset
        self._queue(job, back=True)

    def _cancelled(self, event: ev.Cancelled) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is None:
            return
        buyer.hear(self._now)
        job = buyer.jobs.get(event.order_id)
        if job is None:
            self._refuse(event.session, event.seq, "unknown_order")
        elif buyer.version == 1 and job.state == "out":
            self._refuse(event.session, event.seq, "not_dispatchable")
        else:
            self._answer(buyer, event.seq, [job])

    def _discarded(self, event: ev.Discarded) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is not None:
            buyer.hear(self._now)
            self._answer(buyer, event.seq, list(buyer.jobs.values()))

    def _answer(self, buyer: Buyer, seq: int, jobs: list[Job]) -> None:
        named: dict[str, list[str]] = {"untouched": [], "touched": [], "held": []}
        for job in jobs:
            named[self._withdraw(job)].append(job.asked.order_id)
        self._effects.append(
            ev.Answer(
                session=buyer.session,
                seq=seq,
                untouched=named["untouched"],
                touched=named["touched"],
                held=named["held"],
            )
        )

    def _withdraw(self, job: Job) -> str:
        if job.state == "out":
            self._revoke(job)
            job.cancelled = True
            return "held"
        self._end(job, "cancelled")
        return "touched" if job.touched else "untouched"

    def _revoke(self, job: Job) -> None:
        maker = job.maker
        if maker is not None and maker.cancels and not job.cancelled:
            lease = next(lease for lease, held in maker.held.items() if held is job)
            self._revoked.setdefault(maker.session, []).append(lease)

    def _drain_asked(self, event: ev.DrainAsked) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is None:
            return
        buyer.hear(self._now)
        if not self.settings.allow_drain:
            self._refuse(event.session, event.seq, "forbidden")
            return
        drained = 0
        for maker in self.makers.values():
            if not maker.draining and event.name in (None, maker.name):
                maker.draining = True
                drained += 1
                self._effects.append(ev.Terminate(maker.session))
        self._effects.append(ev.Answer(session=event.session, seq=event.seq, terminated=drained))
        self._dispatch()

    def _buyer_gone(self, buyer: Buyer, reason: str) -> None:
        for job in list(buyer.jobs.values()):
            self._revoke(job)
            self._end(job, "cancelled")
        del self.buyers[buyer.session]
        self._back(buyer)
        self._dismiss(buyer.session, reason)

    # --- suppliers ----------------------------------------------------------------------

    def _supplier_joined(self, event: ev.SupplierJoined) -> None:
        maker = self.makers.get(event.session)
        resumed = maker is not None
        if maker is not None:
            if event.seq < maker.hello_seq:
                self._refuse(event.session, event.seq, "stale_hello")
                return
            maker.hello_seq = event.seq
        others = [
            m
            for m in self.makers.values()
            if m.session != event.session
            and m.version == event.version
            and set(m.patterns) & set(event.patterns)
        ]
        if any(other.exclusive or event.exclusive for other in others):
            self._refuse(event.session, event.seq, "pattern_taken")
            return
        if not event.patterns or BAD_PATTERNS & set(event.patterns):
            self._refuse(event.session, event.seq, "pattern_refused")
            return
        of_class = (event.version, tuple(event.patterns), event.contracts)
        is_news = all(
            (m.version, m.patterns, m.contracts) != of_class for m in self.makers.values()
        )
        if maker is None:
            maker = Maker(event.session, event.version, event.name, self._now, event.seq)
            self.makers[event.session] = maker
        maker.name = event.name
        maker.patterns = tuple(event.patterns)
        maker.contracts = {p: c for p, c in event.contracts.items() if p in event.patterns}
        maker.credit = event.credit
        maker.cancels = event.cancels
        maker.exclusive = event.exclusive
        maker.heard = self._now
        maker.suspect = False
        maker.asked = False
        self._back(maker)
        missing = [str(lease) for lease in sorted(set(event.holds)) if lease not in maker.held]
        self._effects.append(ev.Welcome(event.session, resumed, missing))
        if maker.draining:
            self._effects.append(ev.Terminate(event.session))
        self._dispatch()
        for lease in [lease for lease in maker.held if lease not in event.holds]:
            self._return(maker.held.pop(lease))
        unwanted = [i for i, job in maker.held.items() if job.cancelled or job.state == "ended"]
        if unwanted and maker.cancels:
            self._revoked[maker.session] = unwanted
        if is_news:
            self._refuse_strangers(maker)

    def _refuse_strangers(self, maker: Maker) -> None:
        """What waits, was never given to anybody, and is now supplied under another contract."""
        refused: dict[tuple[bytes, str], list[Job]] = {}
        for job in sorted(self.waiting(), key=lambda job: job.place):
            if (
                not job.touched
                and maker.matches(job, None)
                and not any(m.matches(job, job.contract) for m in self.makers.values())
            ):
                refused.setdefault((job.buyer, job.asked.product_id), []).append(job)
        for (buyer, _), jobs in refused.items():
            self._refuse(buyer, 0, "contract_mismatch", [job.asked.order_id for job in jobs])
            for job in jobs:
                self._end(job, "failed")

    def _ready(self, event: ev.Ready) -> None:
        maker = self._hear_maker(event.session)
        if maker is not None:
            maker.asked = maker.version > 1 or not maker.held
            self._dispatch()

    def _drained(self, event: ev.Drained) -> None:
        maker = self.makers.get(event.session)
        if maker is None:
            return
        maker.draining = True
        self._hear_maker(event.session)
        for lease in event.leases:
            job = maker.held.pop(lease, None)
            if job is None:
                self.stale += 1
            else:
                self._return(job)

    def _finished(self, event: ev.Finished) -> None:
        maker = self._hear_maker(event.session)
        if maker is None:
            return
        # The credits of one DONE come back together, when all of it was read.
        self._busy_with = None if maker.takes else maker
        for result in event.results:
            job = maker.held.get(result.lease)
            if job is None or job.asked.order_id != result.order_id:
                self.stale += 1
                continue
            del maker.held[result.lease]
            self._settle(maker, job, result)
        self._busy_with = None
        self._dispatch()

    def _v1_finished(self, event: ev.V1Finished) -> None:
        maker = self._hear_maker(event.session)
        held = maker.held if maker is not None else {}
        lease = next((i for i, job in held.items() if job.asked.order_id == event.order_id), 0)
        if maker is None or not lease:
            self.stale += 1
            self._refuse(event.session, 0, "unknown_order")
            return
        job = maker.held.pop(lease)
        self._effects.append(ev.Answer(session=event.session, seq=0))
        self._settle(
            maker, job, Result(event.order_id, lease, event.success, nbytes=job.asked.nbytes)
        )

    def _settle(self, maker: Maker, job: Job, result: Result) -> None:
        job.maker = None
        if job.state == "ended":
            return
        if result.success and result.nbytes <= job.asked.nbytes:
            maker.served += 1
            self._end(job, "fulfilled")
            delivery = Delivery(job.asked.order_id, result.lease, result.nbytes, result.checksum)
            self._effects.append(ev.Fulfil(job.buyer, job.version, delivery))
            return
        job.failures += 1
        if result.success:
            kind = "ProductTooLarge"
        else:
            kind = result.error.type if result.error is not None else "Failed"
        job.attempts.append((maker.name, kind))
        if job.cancelled:
            self._fail(job, "cancelled")
        elif job.failures == self.settings.max_order_attempts:
            self._fail(job, "attempts")
        else:
            job.failed_by.add(maker)
            self._return(job)

    def _return(self, job: Job) -> None:
        """Nobody will write to its slot any more."""
        job.maker = None
        if job.state == "ended":
            return
        if job.cancelled:
            self._fail(job, "cancelled")
        elif job.due is not None and job.due <= self._now:
            self._fail(job, "deadline")
        else:
            self._queue(job, back=True)

    def _lose(self, maker: Maker, job: Job, lease: int) -> None:
        """Its supplier may still write to its slot."""
        job.maker = None
        if job.state == "ended":
            return
        job.losses += 1
        job.attempts.append((maker.name, "Lost"))
        if job.cancelled or job.losses == self.settings.max_order_losses:
            self._fail(job, "lost", lease)
        elif job.version == 1:
            self._return(job)
        elif job.due is not None and job.due <= self._now:
            self._fail(job, "deadline", lease)
        else:
            job.state = "parked"
            self._effects.append(ev.Lose(job.buyer, job.asked.order_id, lease))

    def _maker_gone(self, maker: Maker, reason: str) -> None:
        self._forget(maker, reason)
        for lease in list(maker.held):
            self._lose(maker, maker.held.pop(lease), lease)

    def _forget(self, maker: Maker, reason: str) -> None:
        del self.makers[maker.session]
        self._back(maker)
        self._dismiss(maker.session, reason)
        self._dispatch()

    def _dismiss(self, session: bytes, reason: str) -> None:
        self.dropped[reason] += 1
        self._effects.append(ev.Dismiss(session, reason))

    # --- both ---------------------------------------------------------------------------

    def _hear_maker(self, session: bytes) -> Maker | None:
        maker = self.makers.get(session)
        if maker is not None:
            maker.heard = self._now
            maker.suspect = False
            self._dispatch()
        return maker

    def _heard(self, event: ev.Heard) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is not None:
            buyer.hear(self._now)
        self._hear_maker(event.session)

    def _back(self, party: Buyer | Maker) -> None:
        party.away_since = None
        if party in self.away:
            self.away.remove(party)

    def _disconnected(self, event: ev.Disconnected) -> None:
        party = self.buyers.get(event.session) or self.makers.get(event.session)
        if party is not None and party.version == 1:
            self._gone(party, "gone")
        elif party is not None and party.away_since is None:
            party.away_since = self._now
            self.away.append(party)

    def _left(self, event: ev.Left) -> None:
        buyer = self.buyers.get(event.session)
        if buyer is not None:
            self._buyer_gone(buyer, "left")
        maker = self.makers.get(event.session)
        if maker is not None:
            self._forget(maker, "left")
            for lease in list(maker.held):
                self._return(maker.held.pop(lease))

    def _dropped(self, event: ev.Dropped) -> None:
        party = self.buyers.get(event.session) or self.makers.get(event.session)
        if party is not None:
            self._gone(party, event.reason)

    def _gone(self, party: Buyer | Maker, reason: str) -> None:
        if isinstance(party, Buyer):
            self._buyer_gone(party, reason)
        else:
            self._maker_gone(party, reason)

    def _paused(self, event: ev.Paused) -> None:
        """What the broker slept through is nobody's silence."""
        parties: list[Buyer | Maker] = [*self.buyers.values(), *self.makers.values()]
        for party in parties:
            party.heard = min(self._now, party.heard + event.seconds)
            if party.away_since is not None:
                party.away_since = min(self._now, party.away_since + event.seconds)
        for maker in self.makers.values():
            for job in maker.held.values():
                if maker.version == 1:
                    job.dispatched_at = min(self._now, job.dispatched_at + event.seconds)

    def _ticked(self, _event: ev.Ticked) -> None:
        """Deadlines, then clients, then who is suspect; and then only who is lost, and its work."""
        now, settings = self._now, self.settings
        due = [j for j in self.jobs() if j.due is not None and j.due <= now and j.state != "out"]
        for job in due:
            self._fail(job, "deadline")
        for buyer in list(self.buyers.values()):
            if buyer.away_since is not None and now - buyer.away_since >= settings.client_grace_s:
                self._buyer_gone(buyer, "gone")
            elif buyer.version > 1 and now - buyer.heard >= settings.dead_s:
                self._buyer_gone(buyer, "silent")
        for maker in self.makers.values():
            if maker.version > 1 and now - maker.heard >= settings.suspect_s:
                maker.suspect = True
        lost = [m for m in self.away if isinstance(m, Maker)]
        for maker in lost:
            if maker.away_since is not None and (
                now - maker.away_since >= settings.reconnect_grace_s
            ):
                self._maker_gone(maker, "gone")
        for maker in list(self.makers.values()):
            if maker.version > 1:
                if now - maker.heard >= settings.dead_s:
                    self._maker_gone(maker, "silent")
                continue
            for lease, job in list(maker.held.items()):
                if now - job.dispatched_at >= settings.v1_order_timeout_s:
                    self._lose(maker, maker.held.pop(lease), lease)

        for job in sorted(self._impatient(now), key=lambda job: job.place[2]):
            job.failed_by = set()
            self._queue(job, back=True)

    def _impatient(self, now: float) -> list[Job]:
        return [job for job in self.waiting() if job.failed_by and job.patient_until <= now]

    def wake_by(self, now: float) -> float:
        """The latest moment for the next ``Ticked``."""
        due = [now + self.settings.beat_s]
        due += [job.patient_until for job in self.waiting() if job.failed_by]
        due += [job.due for job in self.jobs() if job.due is not None and job.state != "out"]
        for party in self.away:
            if party.away_since is not None:
                is_buyer = isinstance(party, Buyer)
                grace = (
                    self.settings.client_grace_s if is_buyer else self.settings.reconnect_grace_s
                )
                due.append(party.away_since + grace)
        return min(due)

    # --- STATS --------------------------------------------------------------------------

    def stats(self, now: float) -> dict[str, Any]:
        """Those figures of STATS that the rules fix."""
        makers = list(self.makers.values())
        waiting = self.waiting()
        orphans = [j for m in makers for j in m.held.values() if j.state == "ended"]
        products: dict[tuple[int, str, str | None], Counter[str]] = {}
        for job in [*self.jobs(), *orphans]:
            key = (job.version, job.asked.product_id, job.contract)
            row = products.setdefault(key, Counter())
            row[{"waiting": "queued", "parked": "parked"}.get(job.state, "in_flight")] += 1
            if job.state == "waiting" and self._unservable(job):
                row["unservable"] += 1
        classes: dict[object, list[Maker]] = {}
        for maker in makers:
            of_class = (maker.version, maker.patterns, tuple(sorted(maker.contracts.items())))
            classes.setdefault(of_class, []).append(maker)
        return {
            "orders": {
                "queued": len(waiting),
                "in_flight": sum(len(maker.held) for maker in makers),
                "parked": sum(job.state == "parked" for job in self.jobs()),
                "unservable": sum(map(self._unservable, waiting)),
                "open": sum(1 for _ in self.jobs()),
                "oldest_age_s": max((now - job.placed_at for job in waiting), default=0.0),
                "placed": self.accepted,
                "fulfilled": self.outcomes["fulfilled"],
                "failed": self.outcomes["failed"],
                "cancelled": self.outcomes["cancelled"],
            },
            "products": Counter(
                (key[1], row["queued"], row["in_flight"], row["parked"], row["unservable"])
                for key, row in products.items()
            ),
            "classes": Counter(
                (
                    members[0].patterns,
                    members[0].version,
                    len(members),
                    sum(member.takes for member in members),
                    sum(members[0].matches(job, job.contract) for job in waiting),
                    sum(len(member.held) for member in members),
                )
                for members in classes.values()
            ),
            "suppliers": {
                "ready": len(self.takers()),
                "busy": sum(bool(maker.held) for maker in makers),
                "suspect": sum(m.suspect or m.away_since is not None for m in makers),
                "draining": sum(maker.draining for maker in makers),
                "connected": len(makers),
            },
            "clients": len(self.buyers),
            "refused": +self.refused,
            "stale_answers": self.stale,
            "dropped": self.dropped,
        }

    def _unservable(self, job: Job) -> bool:
        return not any(maker.matches(job, job.contract) for maker in self.makers.values())


def _is_for(item: WorkItem, job: Job) -> bool:
    asked = job.asked
    wanted = (
        asked.order_id,
        asked.product_id,
        asked.address,
        asked.offset,
        asked.nbytes,
        asked.input,
    )
    return wanted == (
        item.order_id,
        item.product_id,
        item.address,
        item.offset,
        item.nbytes,
        item.input,
    )
