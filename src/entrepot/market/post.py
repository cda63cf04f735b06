"""What leaves the broker: the ledger's effects as messages, pushes kept until acknowledged.

WORK, CANCEL and TERMINATE to suppliers, and FULFILLED gather while the broker works through what
has arrived, and leave together, one message a peer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from entrepot.market import events as ev
from entrepot.market import protocol as p
from entrepot.market.outbox import Frames, Full, Pending, Pushes
from entrepot.market.port import Peer, Port
from entrepot.settings import BrokerSettings

log = logging.getLogger("entrepot.broker")


AT_ONCE = 128
"""Orders in one WORK or FULFILLED, at most: their names alone may have 16 KiB each, and a peer does
not take a message of any size."""


LEASES_AT_ONCE = 4096
"""Leases in one CANCEL, at most; nine bytes each."""


class Post:
    """See the module. ``front`` and ``back`` are the clients' port and the suppliers'."""

    def __init__(self, front: Port, back: Port, settings: BrokerSettings) -> None:
        self.front = front
        self.back = back
        self._settings = settings
        self.pushes: dict[bytes, Pushes] = {}
        self.slow: list[bytes] = []
        """Sessions that do not read what they are sent, for the ledger to drop."""
        self._deliveries: dict[bytes, list[p.Delivery]] = {}
        self._assigned: dict[bytes, list[p.WorkItem]] = {}
        self._revoked: dict[bytes, list[int]] = {}
        self._terminated: dict[bytes, None] = {}
        self._effects: dict[type[ev.Effect], Callable[[Any], None]] = {
            ev.Assign: self._send_work,
            ev.Fulfil: self._send_fulfilled,
            ev.Fail: self._send_failed,
            ev.Lose: self._send_lost,
            ev.Answer: self._send_answer,
            ev.Refuse: self._send_refusal,
            ev.Terminate: self._send_terminate,
            ev.Revoke: self._send_cancel,
            ev.Dismiss: self._dismiss,
        }

    def carry_out(self, effects: Iterable[ev.Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, ev.Welcome):  # which the desk answers
                self._effects[type(effect)](effect)

    def send(self, port: Port, peer: Peer, frames: Frames) -> None:
        """Now, or as soon as the connection takes it; a peer that never does is dropped."""
        try:
            port.send(peer, frames)
        except Full as fault:
            self._too_slow(peer.session, fault)

    def _too_slow(self, session: bytes, fault: Full) -> None:
        log.warning("session %s is dropped: %s", session.hex()[:8], fault)
        self.slow.append(session)
        port, peer = self.find(session)
        if peer is not None:
            body = p.refusal("session_dropped", f"{fault}; read faster, and say HELLO anew")
            port.forget(peer)
            port.send_stranger(peer.rid, (p.REPLY, body))

    def pending(self) -> Pending:
        return Pending(self._settings.max_outbox, self._settings.max_outbox_nbytes)

    def open_pushes(self, session: bytes) -> Pushes:
        pushes = self.pushes.get(session)
        if pushes is None:
            pushes = self.pushes[session] = Pushes(
                self._settings.max_outbox, self._settings.max_outbox_nbytes
            )
        return pushes

    def flush(self) -> None:
        """Sends what has gathered: work first, since a supplier waits for it."""
        if self._assigned:
            self._flush_work()
        if self._revoked:
            self._flush_cancels()
        if self._terminated:
            self._flush_terminates()
        if self._deliveries:
            self._flush_fulfilled()

    def beat(self) -> None:
        """A heartbeat to every version-2 peer. One whose connection is dead is found by it."""
        for port in (self.back, self.front):
            for peer in list(port.by_session.values()):
                if peer.version > 1:
                    body = p.EMPTY
                    if port is self.front:
                        body = p.encode(p.BrokerHeartbeat(self.pushes[peer.session].last))
                    self.send(port, peer, (p.HEARTBEAT, body))

    def find(self, session: bytes) -> tuple[Port, Peer | None]:
        port = self.front if session.endswith(self.front.side) else self.back
        return port, port.by_session.get(session)

    def reply_v1(self, port: Port, peer: Peer, ok: bool = True, **fields: Any) -> None:
        self.send(port, peer, (p.encode({"ok": ok, **fields}),))

    def _push(
        self,
        session: bytes,
        command: bytes,
        message: p.Fulfilled | p.Failed | p.Lost,
        ends: list[str],
    ) -> None:
        """Numbers a message to a client, keeps it until acknowledged, sends it if connected."""
        pushes = self.pushes.get(session)
        if pushes is None:  # dropped a moment ago, for reading too slowly
            return
        message.push = pushes.number()
        frames = (command, p.encode(message))
        peer = self.front.by_session.get(session)
        if peer is not None:
            self.send(self.front, peer, frames)
        try:
            pushes.keep(message.push, frames, ends)
        except Full as fault:
            self._too_slow(session, fault)

    def _send_work(self, effect: ev.Assign) -> None:
        if effect.version > 1:
            waiting = self._assigned.get(effect.session)
            if waiting is None:
                self._assigned[effect.session] = effect.items
            else:
                waiting.extend(effect.items)
            return
        peer = self.back.by_session.get(effect.session)
        if peer is not None:
            for item in effect.items:
                work = p.V1Work(item.order_id, item.product_id, item.address, item.offset)
                self.send(self.back, peer, (p.WORK, p.encode(work)))

    def _flush_work(self) -> None:
        assigned, self._assigned = self._assigned, {}
        for session, items in assigned.items():
            peer = self.back.by_session.get(session)
            if peer is not None:
                for start in range(0, len(items), AT_ONCE):
                    work = p.Work(items[start : start + AT_ONCE])
                    self.send(self.back, peer, (p.WORK, p.encode(work)))

    def _send_fulfilled(self, effect: ev.Fulfil) -> None:
        if effect.version > 1:
            self._deliveries.setdefault(effect.session, []).append(effect.delivery)
        else:
            self._push_v1(effect.session, p.FULFILLED, effect.delivery.order_id)

    def _flush_fulfilled(self) -> None:
        deliveries, self._deliveries = self._deliveries, {}
        for session, orders in deliveries.items():
            for start in range(0, len(orders), AT_ONCE):
                some = orders[start : start + AT_ONCE]
                ends = [order.order_id for order in some]
                self._push(session, p.FULFILLED, p.Fulfilled(0, some), ends)

    def _push_v1(self, session: bytes, command: bytes, order_id: str) -> None:
        peer = self.front.by_session.get(session)
        if peer is not None:
            self.send(self.front, peer, (command, p.encode(p.V1OrderId(order_id))))

    def _send_failed(self, effect: ev.Fail) -> None:
        order_id = effect.order_id
        if effect.version > 1:
            push = p.Failed(0, order_id, effect.reason, list(effect.attempts), effect.lease)
            self._push(effect.session, p.FAILED, push, [order_id])
        else:
            self._push_v1(effect.session, p.FAILED, order_id)

    def _send_lost(self, effect: ev.Lose) -> None:
        self._push(effect.session, p.LOST, p.Lost(0, effect.order_id, effect.lease), [])

    def _send_answer(self, effect: ev.Answer) -> None:
        port, peer = self.find(effect.session)
        if peer is None:
            return
        if peer.version > 1:
            reply = p.Reply(
                seq=effect.seq,
                untouched=list(effect.untouched),
                touched=list(effect.touched),
                held=list(effect.held),
                terminated=effect.terminated,
            )
            self.send(port, peer, (p.REPLY, p.encode(reply)))
        elif port is self.front:
            ids = [*effect.untouched, *effect.touched]
            self.reply_v1(port, peer, cancelled=len(ids), cancelled_ids=ids)
        else:
            self.reply_v1(port, peer)

    def _send_refusal(self, effect: ev.Refuse) -> None:
        port, peer = self.find(effect.session)
        if peer is None:
            return
        if peer.version > 1:
            body = p.refusal(effect.code, effect.error, effect.seq, effect.order_ids, effect.terms)
            self.send(port, peer, (p.REPLY, body))
        else:
            self.reply_v1(port, peer, ok=False, code=effect.code, error=effect.error)

    def _send_terminate(self, effect: ev.Terminate) -> None:
        # With WORK: one that has just said HELLO reads nothing before the answer to that.
        self._terminated[effect.session] = None

    def _flush_terminates(self) -> None:
        terminated, self._terminated = self._terminated, {}
        for session in terminated:
            port, peer = self.find(session)
            if peer is not None:
                self.send(port, peer, (p.TERMINATE, p.EMPTY))

    def _send_cancel(self, effect: ev.Revoke) -> None:
        # With WORK, or a supplier would be told of leases before it has them; and after a HELLO.
        self._revoked.setdefault(effect.session, []).extend(effect.leases)

    def _flush_cancels(self) -> None:
        revoked, self._revoked = self._revoked, {}
        for session, leases in revoked.items():
            peer = self.back.by_session.get(session)
            if peer is not None:
                for start in range(0, len(leases), LEASES_AT_ONCE):
                    cancel = p.SupplierCancel(leases[start : start + LEASES_AT_ONCE])
                    self.send(self.back, peer, (p.CANCEL, p.encode(cancel)))

    def _dismiss(self, effect: ev.Dismiss) -> None:
        """The ledger is done with a session. If it speaks again, it begins with HELLO."""
        port, peer = self.find(effect.session)
        if peer is not None:
            port.forget(peer)
        self.pushes.pop(effect.session, None)
        self._deliveries.pop(effect.session, None)
        self._assigned.pop(effect.session, None)
        self._revoked.pop(effect.session, None)
        self._terminated.pop(effect.session, None)
        if effect.reason != "left":
            log.warning("session %s is gone (%s)", effect.session.hex()[:8], effect.reason)
