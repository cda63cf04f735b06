"""What arrives at the broker: messages of both versions, read and handed to the ledger."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from entrepot.errors import ProtocolError
from entrepot.market import events as ev
from entrepot.market import protocol as p
from entrepot.market.figures import stats, v1_stats
from entrepot.market.ledger import Ledger
from entrepot.market.outbox import Frames
from entrepot.market.port import Message, Peer, Port
from entrepot.market.post import Post
from entrepot.settings import BrokerSettings

log = logging.getLogger("entrepot.broker")

_V1_SLOT_NBYTES = 2**62
"""Version 1 does not say how large a slot is."""

Handler = Callable[[Peer, bytes], None]


class Desk:
    """See the module. ``instance`` is the broker's, ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        ledger: Ledger,
        post: Post,
        settings: BrokerSettings,
        instance: bytes,
        clock: Callable[[], float],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._ledger = ledger
        self._post = post
        self._front = post.front
        self._back = post.back
        self._settings = settings
        self._instance = instance
        self._clock = clock
        self._entropy = entropy
        self._refused: Counter[str] = ledger.figures.refused
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
            p.DRAIN: self._on(p.SupplierDrain, self._supplier_drain),
            p.HEARTBEAT: self._on(p.Empty, self._heartbeat),
            p.GOODBYE: self._on(p.Empty, self._goodbye),
        }
        self._v1_client_handlers: dict[bytes, Handler] = {
            p.ORDER: self._on_v1(p.V1Order, self._v1_order),
            p.CANCEL: self._on_v1(p.V1Cancel, self._v1_cancel),
            p.DISCARD: self._on_v1(p.Empty, self._discard),
            p.STATS: self._on_v1(p.Empty, self._v1_stats),
        }
        self._v1_supplier_handlers: dict[bytes, Handler] = {
            p.READY: self._on_v1(p.Empty, self._ready),
            p.DONE: self._on_v1(p.V1Done, self._v1_done),
            p.GOODBYE: self._on_v1(p.Empty, self._v1_goodbye),
        }
        self._read_client_hello = p.reader(p.ClientHello)
        self._read_supplier_hello = p.reader(p.SupplierHello)

    def apply(self, event: ev.Event, now: float | None = None) -> list[ev.Effect]:
        """Tells the ledger, as of ``now`` by default, and sends what follows."""
        effects = self._ledger.apply(event, self._clock() if now is None else now)
        self._post.carry_out(effects)
        while self._post.slow:
            session = self._post.slow.pop()
            self._post.carry_out(self._ledger.apply(ev.Dropped(session, "slow"), self._clock()))
        return effects

    def receive(self, port: Port, first: zmq.Frame, parts: list[bytes], count: int) -> None:
        """One message; ``parts`` are the first two of its ``count`` frames."""
        peer = port.peers.get(first.bytes)
        try:
            if peer is not None and count == 2:
                handler = peer.handlers.get(parts[0])
                if handler is not None:
                    handler(peer, parts[1])
                    return
            self._receive_other(port, peer, self._message(first, parts, count))
        except ProtocolError as fault:
            message = self._message(first, parts, count)
            self._say_no(port, peer, message, "malformed", str(fault))
        except Exception:
            # The last line of defence: a fault of ours costs one message, not the market.
            message = self._message(first, parts, count)
            log.exception("a %s message could not be handled", message.command[:32])
            self._say_no(port, peer, message, "internal", "the broker could not handle this")

    @staticmethod
    def _message(first: zmq.Frame, parts: list[bytes], count: int) -> Message:
        command, body, *_ = *parts, b"", b""
        return Message(first, command, body, count)

    def _receive_other(self, port: Port, peer: Peer | None, message: Message) -> None:
        """HELLO, strangers, and what is not in the protocol."""
        if message.frames > 2 or message.frames == 0:
            raise ProtocolError(f"a message has two frames, this one {message.frames}")
        if message.command == p.HELLO:
            self._hello(port, peer, message)
        elif peer is None:
            self._stranger(port, message)
        else:
            self._dispatch(port, peer, message)

    def _dispatch(self, port: Port, peer: Peer, message: Message) -> None:
        handler = peer.handlers.get(message.command)
        if handler is None:
            shown = message.command[:32].decode("ascii", "backslashreplace")
            self._say_no(port, peer, message, "unknown_command", f"no command {shown!r} here")
        else:
            handler(peer, message.body)

    @staticmethod
    def _on(kind: type[p.M], act: Callable[[Peer, p.M], None]) -> Handler:
        read = p.reader(kind)
        return lambda peer, body: act(peer, read(body))

    @staticmethod
    def _on_v1(kind: type[p.M], act: Callable[[Peer, p.M], None]) -> Handler:
        read = p.reader(kind)
        return lambda peer, body: act(peer, read(body or p.EMPTY))

    def _stranger(self, port: Port, message: Message) -> None:
        """Version 1 may order without HELLO; all else begins with it."""
        if port is self._front and message.command in self._v1_client_handlers:
            v2 = message.command != p.ORDER and p.seq_of(message.body)
            if not v2:
                peer = self._join_v1(port, message)
                if peer is not None:
                    self.apply(ev.ClientJoined(session=peer.session, version=1))
                    self._dispatch(port, peer, message)
                return
        if port is self._back and message.command == p.READY:
            # Version 1 has no answer to READY; its suppliers would take one for something else.
            self._refused["hello_first"] += 1
            return
        self._say_no(port, None, message, "hello_first", "say HELLO first")

    def _hello(self, port: Port, peer: Peer | None, message: Message) -> None:
        # What has gathered belongs to the connection that was: after HELLO a supplier would take
        # work that is no longer its own, and a client would miss the end of an order.
        self._post.flush()
        version = p.version_of(message.body)
        if peer is None and len(self._front.peers) + len(self._back.peers) >= (
            self._settings.max_peers
        ):
            error = f"{self._settings.max_peers:,} peers are connected (max_peers)"
            self._say_no(port, None, message, "too_many_peers", error)
        elif p.is_suppliers(message.body) is not (port is self._back):
            who, here = ("supplier", "clients") if port is self._front else ("client", "suppliers")
            error = f"this is where {here} connect; a {who} uses the broker's other endpoint"
            self._say_no(port, peer, message, "wrong_endpoint", error)
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
            self.apply(ev.Disconnected(peer.session))
        handlers = self._client_handlers if port is self._front else self._supplier_handlers
        new = Peer(message.rid, message.fd, session, p.PROTOCOL, self._post.pending(), handlers)
        port.add(new)
        return new

    def _hello_client(self, peer: Peer | None, message: Message) -> None:
        hello = self._read_client_hello(message.body)
        session = self._session(hello.session, self._front)
        event = ev.ClientJoined(
            session=session,
            version=p.PROTOCOL,
            name=hello.name,
            contract=hello.contract,
            open_orders=hello.open_orders,
            seq=hello.seq,
        )
        if self._cannot_join(self._front, peer, message, event):
            return
        peer = self._attach(self._front, peer, message, session)
        pushes = self._post.open_pushes(session)
        pushes.acknowledge(hello.last_push)
        welcome = self._welcomed(event)
        if welcome is None:
            return
        ended = pushes.ended()
        missing = [order_id for order_id in welcome.missing if order_id not in ended]
        self._reply_hello(self._front, peer, hello.seq, welcome.resumed, missing)
        for frames in pushes:
            self._post.send(self._front, peer, frames)

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
        event = ev.SupplierJoined(
            session=session,
            version=p.PROTOCOL,
            name=hello.name,
            patterns=hello.product_ids,
            credit=hello.credit,
            batch=hello.batch,
            exclusive=hello.exclusive,
            contracts=hello.contracts,
            terms=hello.terms,
            holds=hello.holds,
            cancels=hello.cancels,
            seq=hello.seq,
        )
        if self._cannot_join(self._back, peer, message, event):
            return
        peer = self._attach(self._back, peer, message, session)
        welcome = self._welcomed(event)
        if welcome is not None:
            self._reply_hello(self._back, peer, hello.seq, welcome.resumed, welcome.missing)
        elif session not in self._ledger.suppliers:
            self._back.forget(peer)

    def _cannot_join(
        self,
        port: Port,
        peer: Peer | None,
        message: Message,
        event: ev.ClientJoined | ev.SupplierJoined,
    ) -> bool:
        """Whether the session does not take this HELLO; the connection that said it is told why.

        Before the connection is given the session, since another one keeps it then.
        """
        fault = self._ledger.hello_fault(event)
        if fault is not None:
            self._say_no(port, peer, message, *fault)
        return fault is not None

    def _session(self, session: bytes, port: Port) -> bytes:
        """The session as the ledger knows it: one's own side cannot be mistaken for the other."""
        if not any(session):
            raise ProtocolError("HELLO names no session; send 16 random bytes and keep them")
        return session + port.side

    def _welcomed(self, event: ev.Event) -> ev.Welcome | None:
        """The ledger's welcome, or None when it refused, which the peer has been told."""
        effects = self.apply(event)
        return next((effect for effect in effects if isinstance(effect, ev.Welcome)), None)

    def _reply_hello(self, port: Port, peer: Peer, seq: int, resumed: bool, missing: Any) -> None:
        settings = self._settings
        hello = p.HelloReply(
            protocol=p.PROTOCOL,
            instance=self._instance,
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
        self._post.send(port, peer, (p.REPLY, p.encode(p.Reply(seq=seq, hello=hello))))

    # --- version 2 ----------------------------------------------------------------------

    def _orders(self, peer: Peer, orders: p.Orders) -> None:
        self.apply(ev.Placed(peer.session, orders.orders, orders.seq))

    def _client_heartbeat(self, peer: Peer, beat: p.ClientHeartbeat) -> None:
        self._post.pushes[peer.session].acknowledge(beat.last_push)
        self.apply(ev.Heard(peer.session))

    def _move(self, peer: Peer, move: p.Move) -> None:
        self.apply(ev.Moved(peer.session, move.order_id, move.address, move.offset, move.seq))

    def _cancel(self, peer: Peer, cancel: p.Cancel) -> None:
        self.apply(ev.Cancelled(peer.session, cancel.order_id, cancel.seq))

    def _discard(self, peer: Peer, discard: p.Discard | p.Empty) -> None:
        self.apply(ev.Discarded(peer.session, getattr(discard, "seq", 0)))

    def _stats(self, peer: Peer, request: p.StatsRequest) -> None:
        figures = stats(self._ledger, self._clock())
        figures["instance"] = self._instance.hex()
        figures["unacknowledged"] = sum(map(len, self._post.pushes.values()))
        figures["dropped_replies"] = self._front.dropped_replies + self._back.dropped_replies
        reply = p.Reply(seq=request.seq, stats=figures)
        self._post.send(self._front, peer, (p.REPLY, p.encode(reply)))

    def _drain(self, peer: Peer, drain: p.Drain) -> None:
        self.apply(ev.DrainAsked(peer.session, drain.name, drain.seq))

    def _done(self, peer: Peer, done: p.Done) -> None:
        self.apply(ev.Finished(peer.session, done.results))

    def _supplier_drain(self, peer: Peer, drain: p.SupplierDrain) -> None:
        self.apply(ev.Drained(peer.session, drain.leases))

    def _ready(self, peer: Peer, _: p.Empty) -> None:
        self.apply(ev.Ready(peer.session))

    def _heartbeat(self, peer: Peer, _: p.Empty) -> None:
        self.apply(ev.Heard(peer.session))

    def _goodbye(self, peer: Peer, _: p.Empty) -> None:
        self.apply(ev.Left(peer.session))

    # --- version 1 ----------------------------------------------------------------------

    def _join_v1(self, port: Port, message: Message) -> Peer | None:
        if len(self._front.peers) + len(self._back.peers) >= self._settings.max_peers:
            error = f"{self._settings.max_peers:,} peers are connected (max_peers)"
            self._say_no(port, None, message, "too_many_peers", error)
            return None
        self._v1_ids += 1
        session = self._entropy(16) + port.side
        pending = self._post.pending()
        handlers = self._v1_client_handlers if port is self._front else self._v1_supplier_handlers
        peer = Peer(message.rid, message.fd, session, 1, pending, handlers, self._v1_ids)
        port.add(peer)
        return peer

    def _hello_v1(self, port: Port, peer: Peer | None, message: Message) -> None:
        if peer is not None and peer.version > 1:
            raise ProtocolError("this connection speaks version 2; HELLO must say protocol: 2")
        if port is self._back:
            self._hello_v1_supplier(peer, message)
            return
        if peer is None and (peer := self._join_v1(port, message)) is not None:
            self.apply(ev.ClientJoined(session=peer.session, version=1))
        if peer is not None:
            self._post.reply_v1(port, peer, peer_id=peer.v1_id)

    def _hello_v1_supplier(self, peer: Peer | None, message: Message) -> None:
        """A second HELLO of a connection names new patterns; all else stays as it was."""
        hello = self._read_supplier_hello(message.body or p.EMPTY)
        if len(hello.product_ids) > p.PATTERNS:
            raise ProtocolError(f"at most {p.PATTERNS} patterns are taken from one supplier")
        known = None if peer is None else self._ledger.suppliers.get(peer.session)
        was_ready = known is not None and known.started
        peer = peer or self._join_v1(self._back, message)
        if peer is None:
            return
        event = ev.SupplierJoined(
            session=peer.session,
            version=1,
            name=f"v1-{peer.v1_id}",
            patterns=hello.product_ids,
            holds=list(known.held) if known else (),
        )
        if self._welcomed(event) is not None:
            self._post.reply_v1(self._back, peer, peer_id=peer.v1_id)
            if was_ready:
                self.apply(ev.Ready(peer.session))
        elif known is None:
            self._back.forget(peer)

    def _v1_order(self, peer: Peer, order: p.V1Order) -> None:
        asked = p.Order(
            order.order_id, order.product_id, order.address, order.offset, _V1_SLOT_NBYTES
        )
        effects = self.apply(ev.Placed(peer.session, [asked]))
        # WORK may leave before this answer, FULFILLED cannot: it waits for a supplier's word.
        if not any(isinstance(effect, ev.Refuse) for effect in effects):
            self._post.reply_v1(self._front, peer)

    def _v1_cancel(self, peer: Peer, cancel: p.V1Cancel) -> None:
        self.apply(ev.Cancelled(peer.session, cancel.order_id))

    def _v1_stats(self, peer: Peer, _: p.Empty) -> None:
        self._post.reply_v1(self._front, peer, **v1_stats(self._ledger))

    def _v1_done(self, peer: Peer, done: p.V1Done) -> None:
        self.apply(ev.V1Finished(peer.session, done.order_id, done.success))

    def _v1_goodbye(self, peer: Peer, _: p.Empty) -> None:
        self._post.reply_v1(self._back, peer)
        self.apply(ev.Left(peer.session))

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
            self._post.send(port, peer, frames)


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
