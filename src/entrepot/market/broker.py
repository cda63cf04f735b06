"""The broker: two sockets, one thread, and the ledger between them.

It poll()s, decodes, applies, and sends; every rule is the ledger's. It sees names and places,
never a product's bytes.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import zmq
from zmq.backend import zmq_poll

from entrepot.errors import Closed, ProtocolError, UsedAfterFork
from entrepot.market import events as ev
from entrepot.market import protocol as p
from entrepot.market.figures import stats, v1_stats
from entrepot.market.ledger import Ledger
from entrepot.market.outbox import Frames, Full, Pending, Pushes
from entrepot.market.port import Message, Peer, Port
from entrepot.settings import BrokerSettings

log = logging.getLogger("entrepot.broker")

_BURST = 64
"""Messages taken from one socket before the other has its turn."""

_RETRY_S = 0.005
"""How soon a connection that would take no more is tried again."""

_V1_SLOT_NBYTES = 2**62
"""Version 1 does not say how large a slot is."""

Handler = Callable[[Peer, bytes], None]


def random_leases(entropy: Callable[[int], bytes] = os.urandom) -> Iterator[int]:
    """Random 64-bit numbers, never 0."""
    while True:
        yield from filter(None, struct.unpack("<512Q", entropy(4096)))


class Broker:
    """Brings orders and suppliers together.

    ``frontend`` and ``backend`` are where clients and suppliers connect; port 0 takes a free one,
    and the attributes of the same names then say which. Use it as a context manager, or call
    ``run`` in a thread of your own. ``clock`` gives monotonic seconds, ``entropy`` random bytes.

    Raises EndpointInUse and ConfigurationError when it is started.
    """

    def __init__(
        self,
        frontend: str | None = None,
        backend: str | None = None,
        *,
        settings: BrokerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._settings = settings or BrokerSettings()
        self.frontend = frontend or self._settings.frontend
        self.backend = backend or self._settings.backend
        self.instance = entropy(8)
        self._clock = clock
        self._entropy = entropy
        self._ledger = Ledger(self._settings, random_leases(entropy).__next__)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._state = "new"
        self._pushes: dict[bytes, Pushes] = {}
        self._deliveries: dict[bytes, list[p.Delivery]] = {}
        self._assigned: dict[bytes, list[p.WorkItem]] = {}
        self._refused: Counter[str] = self._ledger.figures.refused
        self._v1_ids = 0
        self._client_handlers: dict[bytes, Handler] = {
            p.ORDERS: self._on(p.Orders, self._orders),
            p.HEARTBEAT: self._on(p.ClientHeartbeat, self._client_heartbeat),
            p.MOVE: self._on(p.Move, self._move),
            p.CANCEL: self._on(p.Cancel, self._cancel),
            p.DISCARD: self._on(p.Discard, self._discard),
            p.STATS: self._on(p.StatsRequest, self._stats),
            p.DRAIN: self._on(p.Drain, self._drain),
            p.GOODBYE: self._on(p.Empty, self._goodbye),
        }
        self._supplier_handlers: dict[bytes, Handler] = {
            p.DONE: self._on(p.Done, self._done),
            p.READY: self._on(p.Empty, self._ready),
            p.HEARTBEAT: self._on(p.Empty, self._heartbeat),
            p.GOODBYE: self._on(p.Empty, self._goodbye),
        }
        self._v1_client_handlers: dict[bytes, Handler] = {
            p.ORDER: self._on(p.V1Order, self._v1_order),
            p.CANCEL: self._on(p.V1Cancel, self._v1_cancel),
            p.DISCARD: self._on(p.Empty, self._discard),
            p.STATS: self._on(p.Empty, self._v1_stats),
        }
        self._v1_supplier_handlers: dict[bytes, Handler] = {
            p.READY: self._on(p.Empty, self._ready),
            p.DONE: self._on(p.V1Done, self._v1_done),
            p.GOODBYE: self._on(p.Empty, self._v1_goodbye),
        }
        self._read_client_hello = p.reader(p.ClientHello)
        self._read_supplier_hello = p.reader(p.SupplierHello)
        self._effects: dict[type[ev.Effect], Callable[[Any], None]] = {
            ev.Assign: self._send_work,
            ev.Fulfil: self._send_fulfilled,
            ev.Fail: self._send_failed,
            ev.Lose: self._send_lost,
            ev.Answer: self._send_answer,
            ev.Refuse: self._send_refusal,
            ev.Terminate: self._send_terminate,
            ev.Dismiss: self._dismiss,
        }

    # --- life ---------------------------------------------------------------------------

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Binds both endpoints and serves in a thread of its own."""
        self._bind()
        self._thread = threading.Thread(target=self._serve, name="entrepot-broker", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Binds both endpoints and serves in the calling thread until ``stop``."""
        self._bind()
        self._serve()

    def stop(self) -> None:
        """Ends ``run`` or the thread. May be called from any thread, or a signal handler."""
        if os.getpid() != self._pid:
            raise UsedAfterFork("a forked child does not have its parent's broker")
        if self._state == "new":
            return
        self._stop.set()
        if self._state == "bound":
            try:
                os.eventfd_write(self._wake, 1)
            except OSError:  # the thread has just ended by itself
                pass
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _bind(self) -> None:
        if self._state != "new":
            raise Closed("a broker serves once; make a new one to serve again")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 65_536)
        self._front = Port(self._context, b"c")
        self._back = Port(self._context, b"s")
        try:
            self.frontend = self._front.bind(self.frontend, self._settings)
            self.backend = self._back.bind(self.backend, self._settings)
        except BaseException:
            self._close()
            raise
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._state = "bound"

    def _close(self) -> None:
        self._front.close()
        self._back.close()
        self._context.term()

    def _serve(self) -> None:
        ports = (self._back, self._front)
        watched: list[Any] = [(port.socket, zmq.POLLIN) for port in ports]
        watched += [(port.monitor, zmq.POLLIN) for port in ports]
        watched.append((self._wake, zmq.POLLIN))
        now = self._clock()
        self._beat_at = now + self._settings.beat_s
        due = self._beat_at
        log.info("clients at %s, suppliers at %s", self.frontend, self.backend)
        try:
            while not self._stop.is_set():
                busy = zmq_poll(watched, max(0, int((due - now) * 1000) + 1))
                for port in ports:
                    for socket, _ in busy:
                        if socket is port.monitor:
                            port.drain_monitor()
                    self._serve_port(port)
                if self._assigned:
                    self._flush_work()
                if self._deliveries:
                    self._flush_fulfilled()
                now = self._clock()
                due = self._keep_time(ports, now)
        finally:
            self._state = "closed"
            self._close()
            os.close(self._wake)

    def _serve_port(self, port: Port) -> None:
        if port.drain(self._receive, _BURST):
            for peer in port.take_closed():
                port.forget(peer)
                self._apply(ev.Disconnected(peer.session))

    def _keep_time(self, ports: tuple[Port, ...], now: float) -> float:
        due = min(self._beat_at, self._ledger.wake_at(now))
        if now >= due:
            self._apply(ev.Ticked())
            if now >= self._beat_at:
                self._beat_at = now + self._settings.beat_s
                for port in ports:
                    self._beat(port)
            due = min(self._beat_at, max(self._ledger.wake_at(now), now + _RETRY_S))
            self._flush_fulfilled()
            self._flush_work()
        for port in ports:
            if port.blocked:
                port.flush_blocked()
                due = min(due, now + _RETRY_S)
            if port.closing:
                due = now
        return due

    def _beat(self, port: Port) -> None:
        for peer in list(port.by_session.values()):
            if peer.version > 1:
                body = p.EMPTY
                if port is self._front:
                    body = p.encode(p.BrokerHeartbeat(self._pushes[peer.session].last))
                self._send(port, peer, (p.HEARTBEAT, body))

    # --- in -----------------------------------------------------------------------------

    def _receive(self, port: Port, message: Message) -> None:
        peer = port.peers.get(message.rid)
        try:
            if message.frames > 2 or message.frames == 0:
                raise ProtocolError(f"a message has two frames, this one {message.frames}")
            if message.command == p.HELLO:
                self._hello(port, peer, message)
            elif peer is None:
                self._stranger(port, message)
            else:
                self._dispatch(port, peer, message)
        except ProtocolError as fault:
            self._say_no(port, peer, message, "malformed", str(fault))
        except Exception:
            # The last line of defence: a fault of ours costs one message, not the market.
            log.exception("a %s message could not be handled", message.command[:32])
            self._say_no(port, peer, message, "internal", "the broker could not handle this")

    def _dispatch(self, port: Port, peer: Peer, message: Message) -> None:
        if peer.version > 1:
            handlers = self._client_handlers if port is self._front else self._supplier_handlers
            body = message.body
        else:
            handlers = (
                self._v1_client_handlers if port is self._front else self._v1_supplier_handlers
            )
            body = message.body or p.EMPTY
        handler = handlers.get(message.command)
        if handler is None:
            shown = message.command[:32].decode("ascii", "backslashreplace")
            self._say_no(port, peer, message, "unknown_command", f"no command {shown!r} here")
        else:
            handler(peer, body)

    @staticmethod
    def _on(kind: type[p.M], act: Callable[[Peer, p.M], None]) -> Handler:
        read = p.reader(kind)
        return lambda peer, body: act(peer, read(body))

    def _stranger(self, port: Port, message: Message) -> None:
        """Version 1 may order without HELLO; all else begins with it."""
        if port is self._front and message.command in self._v1_client_handlers:
            v2 = message.command != p.ORDER and p.seq_of(message.body)
            if not v2:
                peer = self._join_v1(port, message)
                if peer is not None:
                    self._apply(ev.ClientJoined(session=peer.session, version=1))
                    self._dispatch(port, peer, message)
                return
        if port is self._back and message.command == p.READY:
            # Version 1 has no answer to READY; its suppliers would take one for something else.
            self._refused["hello_first"] += 1
            return
        self._say_no(port, None, message, "hello_first", "say HELLO first")

    def _hello(self, port: Port, peer: Peer | None, message: Message) -> None:
        version = p.version_of(message.body)
        if peer is None and len(self._front.peers) + len(self._back.peers) >= (
            self._settings.max_peers
        ):
            error = f"{self._settings.max_peers:,} peers are connected (max_peers)"
            self._say_no(port, None, message, "too_many_peers", error)
        elif version < 2:
            self._hello_v1(port, peer, message)
        elif port is self._front:
            self._hello_client(peer, message)
        else:
            self._hello_supplier(peer, message)

    def _attach(self, port: Port, peer: Peer | None, message: Message, session: bytes) -> Peer:
        """Gives the connection to the session. Another that it had before is disconnected."""
        if peer is not None and peer.session == session:
            return peer
        if peer is not None:
            port.forget(peer)
            self._apply(ev.Disconnected(peer.session))
        new = Peer(message.rid, message.fd, session, p.PROTOCOL, self._pending())
        port.add(new)
        return new

    def _pending(self) -> Pending:
        return Pending(self._settings.max_outbox, self._settings.max_outbox_nbytes)

    def _hello_client(self, peer: Peer | None, message: Message) -> None:
        hello = self._read_client_hello(message.body)
        session = self._session(hello.session, self._front)
        peer = self._attach(self._front, peer, message, session)
        pushes = self._pushes.get(session)
        if pushes is None:
            pushes = self._pushes[session] = Pushes(
                self._settings.max_outbox, self._settings.max_outbox_nbytes
            )
        pushes.acknowledge(hello.last_push)
        event = ev.ClientJoined(
            session=session,
            version=p.PROTOCOL,
            name=hello.name,
            contract=hello.contract,
            open_orders=hello.open_orders,
        )
        welcome = self._welcomed(event)
        if welcome is None:
            return
        ended = pushes.ended()
        missing = [order_id for order_id in welcome.missing if order_id not in ended]
        self._reply_hello(self._front, peer, hello.seq, welcome.resumed, missing)
        for frames in pushes:
            self._send(self._front, peer, frames)

    def _hello_supplier(self, peer: Peer | None, message: Message) -> None:
        hello = self._read_supplier_hello(message.body)
        if len(hello.product_ids) > p.PATTERNS:
            error = (
                f"{len(hello.product_ids):,} patterns were registered; at most {p.PATTERNS} are"
                f" taken from one supplier; join some with | or start another"
            )
            self._say_no(self._back, peer, message, "too_many_patterns", error)
            return
        session = self._session(hello.session, self._back)
        peer = self._attach(self._back, peer, message, session)
        event = ev.SupplierJoined(
            session=session,
            version=p.PROTOCOL,
            name=hello.name,
            patterns=hello.product_ids,
            credit=hello.credit,
            batch=hello.batch,
            exclusive=hello.exclusive,
            contracts=hello.contracts,
            holds=hello.holds,
            seq=hello.seq,
        )
        welcome = self._welcomed(event)
        if welcome is not None:
            self._reply_hello(self._back, peer, hello.seq, welcome.resumed, welcome.missing)
        elif session not in self._ledger.suppliers:
            self._back.forget(peer)

    def _session(self, session: bytes, port: Port) -> bytes:
        """The session as the ledger knows it: one's own side cannot be mistaken for the other."""
        if not any(session):
            raise ProtocolError("HELLO names no session; send 16 random bytes and keep them")
        return session + port.side

    def _welcomed(self, event: ev.Event) -> ev.Welcome | None:
        welcome = None
        for effect in self._ledger.apply(event, self._clock()):
            if isinstance(effect, ev.Welcome):
                welcome = effect
            else:
                self._effects[type(effect)](effect)
        return welcome

    def _reply_hello(self, port: Port, peer: Peer, seq: int, resumed: bool, missing: Any) -> None:
        settings = self._settings
        hello = p.HelloReply(
            protocol=p.PROTOCOL,
            instance=self.instance,
            resumed=resumed,
            missing=list(missing),
            beat_s=settings.beat_s,
            suspect_s=settings.suspect_s,
            dead_s=settings.dead_s,
            limits=p.Limits(
                settings.max_message_nbytes,
                p.ID_CHARS,
                p.PATTERNS,
                settings.max_open_orders,
                p.ERROR_CHARS,
            ),
        )
        self._send(port, peer, (p.REPLY, p.encode(p.Reply(seq=seq, hello=hello))))

    # --- version 2 ----------------------------------------------------------------------

    def _orders(self, peer: Peer, orders: p.Orders) -> None:
        self._apply(ev.Placed(peer.session, orders.orders, orders.seq))

    def _client_heartbeat(self, peer: Peer, beat: p.ClientHeartbeat) -> None:
        self._pushes[peer.session].acknowledge(beat.last_push)
        self._apply(ev.Heard(peer.session))

    def _move(self, peer: Peer, move: p.Move) -> None:
        self._apply(ev.Moved(peer.session, move.order_id, move.address, move.offset, move.seq))

    def _cancel(self, peer: Peer, cancel: p.Cancel) -> None:
        self._apply(ev.Cancelled(peer.session, cancel.order_id, cancel.seq))

    def _discard(self, peer: Peer, discard: p.Discard | p.Empty) -> None:
        self._apply(ev.Discarded(peer.session, getattr(discard, "seq", 0)))

    def _stats(self, peer: Peer, request: p.StatsRequest) -> None:
        figures = stats(self._ledger, self._clock())
        figures["instance"] = self.instance.hex()
        figures["unacknowledged"] = sum(map(len, self._pushes.values()))
        figures["dropped_replies"] = self._front.dropped_replies + self._back.dropped_replies
        reply = p.Reply(seq=request.seq, stats=figures)
        self._send(self._front, peer, (p.REPLY, p.encode(reply)))

    def _drain(self, peer: Peer, drain: p.Drain) -> None:
        self._apply(ev.DrainAsked(peer.session, drain.name, drain.seq))

    def _done(self, peer: Peer, done: p.Done) -> None:
        self._apply(ev.Finished(peer.session, done.results))

    def _ready(self, peer: Peer, _: p.Empty) -> None:
        self._apply(ev.Ready(peer.session))

    def _heartbeat(self, peer: Peer, _: p.Empty) -> None:
        self._apply(ev.Heard(peer.session))

    def _goodbye(self, peer: Peer, _: p.Empty) -> None:
        self._apply(ev.Left(peer.session))

    # --- version 1 ----------------------------------------------------------------------

    def _join_v1(self, port: Port, message: Message) -> Peer | None:
        if len(self._front.peers) + len(self._back.peers) >= self._settings.max_peers:
            error = f"{self._settings.max_peers:,} peers are connected (max_peers)"
            self._say_no(port, None, message, "too_many_peers", error)
            return None
        self._v1_ids += 1
        session = self._entropy(16) + port.side
        peer = Peer(message.rid, message.fd, session, 1, self._pending(), self._v1_ids)
        port.add(peer)
        return peer

    def _hello_v1(self, port: Port, peer: Peer | None, message: Message) -> None:
        if peer is not None and peer.version > 1:
            raise ProtocolError("this connection speaks version 2; HELLO must say protocol: 2")
        if port is self._front:
            if peer is None and (peer := self._join_v1(port, message)) is not None:
                self._apply(ev.ClientJoined(session=peer.session, version=1))
        elif peer is None:
            hello = self._read_supplier_hello(message.body or p.EMPTY)
            if len(hello.product_ids) > p.PATTERNS:
                raise ProtocolError(f"at most {p.PATTERNS} patterns are taken from one supplier")
            peer = self._join_v1(port, message)
            if peer is None:
                return
            event = ev.SupplierJoined(
                session=peer.session, version=1, name=f"v1-{peer.v1_id}", patterns=hello.product_ids
            )
            if self._welcomed(event) is None:
                port.forget(peer)
                return
        if peer is not None:
            self._reply_v1(port, peer, peer_id=peer.v1_id)

    def _reply_v1(self, port: Port, peer: Peer, ok: bool = True, **fields: Any) -> None:
        self._send(port, peer, (p.encode({"ok": ok, **fields}),))

    def _v1_order(self, peer: Peer, order: p.V1Order) -> None:
        asked = p.Order(
            order.order_id, order.product_id, order.address, order.offset, _V1_SLOT_NBYTES
        )
        effects = self._ledger.apply(ev.Placed(peer.session, [asked]), self._clock())
        if not any(isinstance(effect, ev.Refuse) for effect in effects):
            self._reply_v1(self._front, peer)
        for effect in effects:
            self._effects[type(effect)](effect)

    def _v1_cancel(self, peer: Peer, cancel: p.V1Cancel) -> None:
        self._apply(ev.Cancelled(peer.session, cancel.order_id))

    def _v1_stats(self, peer: Peer, _: p.Empty) -> None:
        self._reply_v1(self._front, peer, **v1_stats(self._ledger))

    def _v1_done(self, peer: Peer, done: p.V1Done) -> None:
        self._apply(ev.V1Finished(peer.session, done.order_id, done.success))

    def _v1_goodbye(self, peer: Peer, _: p.Empty) -> None:
        self._reply_v1(self._back, peer)
        self._apply(ev.Left(peer.session))

    # --- out ----------------------------------------------------------------------------

    def _apply(self, event: ev.Event) -> None:
        for effect in self._ledger.apply(event, self._clock()):
            self._effects[type(effect)](effect)

    def _send(self, port: Port, peer: Peer, frames: Frames) -> None:
        try:
            port.send(peer, frames)
        except Full as fault:
            self._drop(port, peer.session, fault)

    def _drop(self, port: Port, session: bytes, fault: Full) -> None:
        """A peer that does not read: its session ends, and the market goes on."""
        log.warning("session %s is dropped: %s", session.hex()[:8], fault)
        peer = port.by_session.get(session)
        if peer is not None:
            port.forget(peer)
        self._apply(ev.Dropped(session, "slow"))

    def _push(
        self,
        session: bytes,
        command: bytes,
        message: p.Fulfilled | p.Failed | p.Lost,
        ends: list[str],
    ) -> None:
        """Numbers a message to a client, keeps it until acknowledged, sends it if connected."""
        pushes = self._pushes.get(session)
        if pushes is None:  # dropped a moment ago, for reading too slowly
            return
        message.push = pushes.number()
        frames = (command, p.encode(message))
        try:
            pushes.keep(message.push, frames, ends)
        except Full as fault:
            self._drop(self._front, session, fault)
            return
        peer = self._front.by_session.get(session)
        if peer is not None:
            self._send(self._front, peer, frames)

    def _send_work(self, effect: ev.Assign) -> None:
        if effect.version > 1:
            waiting = self._assigned.get(effect.session)
            if waiting is None:
                self._assigned[effect.session] = effect.items
            else:
                waiting.extend(effect.items)
            return
        peer = self._back.by_session.get(effect.session)
        if peer is not None:
            for item in effect.items:
                work = p.V1Work(item.order_id, item.product_id, item.address, item.offset)
                self._send(self._back, peer, (p.WORK, p.encode(work)))

    def _flush_work(self) -> None:
        assigned, self._assigned = self._assigned, {}
        for session, items in assigned.items():
            peer = self._back.by_session.get(session)
            if peer is not None:
                self._send(self._back, peer, (p.WORK, p.encode(p.Work(items))))

    def _send_fulfilled(self, effect: ev.Fulfil) -> None:
        if effect.version > 1:
            self._deliveries.setdefault(effect.session, []).append(effect.delivery)
        else:
            self._push_v1(effect.session, p.FULFILLED, effect.delivery.order_id)

    def _flush_fulfilled(self) -> None:
        deliveries, self._deliveries = self._deliveries, {}
        for session, orders in deliveries.items():
            ends = [order.order_id for order in orders]
            self._push(session, p.FULFILLED, p.Fulfilled(0, orders), ends)

    def _push_v1(self, session: bytes, command: bytes, order_id: str) -> None:
        peer = self._front.by_session.get(session)
        if peer is not None:
            self._send(self._front, peer, (command, p.encode(p.V1OrderId(order_id))))

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
        port, peer = self._find(effect.session)
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
            self._send(port, peer, (p.REPLY, p.encode(reply)))
        elif port is self._front:
            ids = [*effect.untouched, *effect.touched]
            self._reply_v1(port, peer, cancelled=len(ids), cancelled_ids=ids)
        else:
            self._reply_v1(port, peer)

    def _send_refusal(self, effect: ev.Refuse) -> None:
        port, peer = self._find(effect.session)
        if peer is None:
            return
        if peer.version > 1:
            body = p.refusal(effect.code, effect.error, effect.seq, effect.order_ids)
            self._send(port, peer, (p.REPLY, body))
        else:
            self._reply_v1(port, peer, ok=False, code=effect.code, error=effect.error)

    def _send_terminate(self, effect: ev.Terminate) -> None:
        port, peer = self._find(effect.session)
        if peer is not None:
            self._send(port, peer, (p.TERMINATE, p.EMPTY))

    def _dismiss(self, effect: ev.Dismiss) -> None:
        """The ledger is done with a session. If it speaks again, it begins with HELLO."""
        port, peer = self._find(effect.session)
        if peer is not None:
            port.forget(peer)
        self._pushes.pop(effect.session, None)
        self._deliveries.pop(effect.session, None)
        self._assigned.pop(effect.session, None)
        self._ledger.figures.dropped[effect.reason] += 1
        if effect.reason != "left":
            log.warning("session %s is gone (%s)", effect.session.hex()[:8], effect.reason)

    def _find(self, session: bytes) -> tuple[Port, Peer | None]:
        port = self._front if session.endswith(self._front.side) else self._back
        return port, port.by_session.get(session)

    def _say_no(
        self, port: Port, peer: Peer | None, message: Message, code: str, error: str
    ) -> None:
        self._refused[code] += 1
        seq = p.seq_of(message.body)
        if peer is not None:
            speaks_2 = peer.version > 1
        else:
            speaks_2 = bool(seq) or message.command not in _V1_COMMANDS or _is_v2_done(message)
        frames: Frames
        if speaks_2:
            frames = (p.REPLY, p.refusal(code, error, seq))
        else:
            frames = (p.encode({"ok": False, "code": code, "error": error}),)
        if peer is None:
            port.send_stranger(message.rid, frames)
        else:
            self._send(port, peer, frames)


_V1_COMMANDS = {p.HELLO, p.ORDER, p.CANCEL, p.DISCARD, p.STATS, p.READY, p.DONE, p.GOODBYE}

_read_done = p.reader(p.Done)


def _is_v2_done(message: Message) -> bool:
    if message.command != p.DONE:
        return False
    try:
        _read_done(message.body)
    except ProtocolError:
        return False
    return True
