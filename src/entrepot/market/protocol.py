"""The market's messages: typed structs, and their encoding. See ``docs/protocol.md``.

One struct a message. Encoding and validation are one step each (msgspec); nothing else in the
package knows how a message looks in bytes. Structs named ``V1...`` are version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from entrepot.errors import ProtocolError
from entrepot.market.wording import command_of, in_words

PROTOCOL = 2
"""The highest version spoken here."""

ID_CHARS = 4096
"""Longest order id, product id or address, in characters."""

PATTERN_CHARS = 65_536
"""Longest pattern, in characters. Its compiled size has a limit of its own."""

ERROR_CHARS = 1024
"""Longest error message that a supplier may report; it cuts longer ones itself."""

PATTERNS = 256
"""Most patterns in one HELLO."""

HELLO_NBYTES = 4 << 20
"""Longest fields of a HELLO. Every broker takes messages of that size."""

TERMS_CHARS = 4096
"""Longest text of a contract that is passed on to who has another."""

Text = Annotated[str, Meta(max_length=ID_CHARS)]
Digest = Annotated[str, Meta(max_length=256)]
Pattern = Annotated[str, Meta(max_length=PATTERN_CHARS)]
Session = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Lease = Annotated[int, Meta(ge=0)]
Priority = Annotated[int, Meta(ge=-(2**31), lt=2**31)]

# Commands, as they stand in the first frame.
HELLO = b"HELLO"
ORDER = b"ORDER"
ORDERS = b"ORDERS"
MOVE = b"MOVE"
CANCEL = b"CANCEL"
DISCARD = b"DISCARD"
STATS = b"STATS"
DRAIN = b"DRAIN"
HEARTBEAT = b"HEARTBEAT"
GOODBYE = b"GOODBYE"
READY = b"READY"
DONE = b"DONE"
WORK = b"WORK"
TERMINATE = b"TERMINATE"
REPLY = b"REPLY"
FULFILLED = b"FULFILLED"
FAILED = b"FAILED"
LOST = b"LOST"


class Message(Struct, omit_defaults=True, gc=False):
    """A map on the wire. Unknown fields are ignored, defaults may be left out."""


class Empty(Message):
    """No fields."""


# --- shared parts -----------------------------------------------------------------------


class Region(Message):
    """``nbytes`` bytes at ``offset`` of the medium at ``address``."""

    address: Text
    offset: Count
    nbytes: Count


class Fault(Message):
    """What a supplier's function raised: the type's name, and the message, cut."""

    type: Annotated[str, Meta(max_length=ERROR_CHARS)]
    message: Annotated[str, Meta(max_length=ERROR_CHARS)] = ""


class Attempt(Message):
    """One try at an order: who made it, and how it ended."""

    supplier: str
    type: str
    message: str = ""


# --- version 2, from a client -----------------------------------------------------------


class ClientHello(Message, kw_only=True):
    seq: Count = 0
    protocol: Count = 1
    session: Session = bytes(16)
    name: Annotated[str, Meta(max_length=256)] = ""
    contract: Digest | None = None
    last_push: Count = 0
    open_orders: list[Text] = []


class Order(Message):
    """An order for one product, to be written at (address, offset), at most ``nbytes``."""

    order_id: Text
    product_id: Text
    address: Text
    offset: Count
    nbytes: Count
    input: Region | None = None
    priority: Priority = 0
    deadline_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None


class Orders(Message):
    orders: list[Order]
    seq: Count = 0


class Move(Message):
    order_id: Text
    address: Text
    offset: Count
    seq: Count = 0


class Cancel(Message):
    order_id: Text
    seq: Count = 0


class Discard(Message):
    seq: Count = 0


class StatsRequest(Message):
    seq: Count = 0


class Drain(Message):
    seq: Count = 0
    name: Annotated[str, Meta(max_length=256)] | None = None


class ClientHeartbeat(Message):
    last_push: Count = 0


# --- version 2, to a peer ---------------------------------------------------------------


class Limits(Message):
    message_nbytes: int
    id_chars: int
    patterns: int
    open_orders: int
    error_chars: int


class HelloReply(Message, kw_only=True):
    protocol: int
    instance: bytes
    resumed: bool
    missing: list[str] = []
    beat_s: float
    suspect_s: float
    dead_s: float
    limits: Limits


class Reply(Message, kw_only=True):
    seq: int = 0
    code: str = "ok"
    error: str = ""
    hello: HelloReply | None = None
    stats: dict[str, Any] | None = None
    untouched: list[str] = []
    touched: list[str] = []
    held: list[str] = []
    refused: list[str] = []
    terms: str = ""
    terminated: int = 0


class Delivery(Message):
    """One fulfilled order: ``checksum`` is XXH3-64 of the ``nbytes`` that were written."""

    order_id: str
    lease: Lease
    nbytes: int
    checksum: Lease


class Fulfilled(Message):
    push: int
    orders: list[Delivery]


class Failed(Message):
    push: int
    order_id: str
    reason: str
    attempts: list[Attempt] = []
    lease: Lease = 0


class Lost(Message):
    push: int
    order_id: str
    lease: Lease


class BrokerHeartbeat(Message):
    push: int = 0


# --- version 2, suppliers ---------------------------------------------------------------


class SupplierHello(Message, kw_only=True):
    seq: Count = 0
    protocol: Count = 1
    session: Session = bytes(16)
    name: Annotated[str, Meta(max_length=256)] = ""
    product_ids: list[Pattern]
    credit: Annotated[int, Meta(ge=1, le=65536)] = 1
    batch: Annotated[int, Meta(ge=1, le=65536)] = 1
    exclusive: bool = False
    contracts: dict[Pattern, Digest] = {}
    terms: dict[Digest, Annotated[str, Meta(max_length=TERMS_CHARS)]] = {}
    holds: list[Lease] = []
    cancels: bool = False


class Result(Message):
    """How one order ended at its supplier."""

    order_id: Text
    lease: Lease
    success: bool = True
    nbytes: Count = 0
    checksum: Lease = 0
    error: Fault | None = None


class Done(Message):
    results: list[Result]


class SupplierDrain(Message):
    """A supplier takes no more orders. ``leases`` are of orders that it has not begun."""

    leases: list[Lease] = []


class SupplierCancel(Message):
    """Nobody wants what is made under these leases any more; to who said ``cancels``."""

    leases: list[Lease]


class WorkItem(Message):
    order_id: str
    lease: int
    product_id: str
    address: str
    offset: int
    nbytes: int
    input: Region | None = None


class Work(Message):
    orders: list[WorkItem]


# --- version 1 --------------------------------------------------------------------------


class V1Hello(Struct, gc=False):
    protocol: Count = 1


class V1Order(Struct, gc=False, forbid_unknown_fields=True):
    order_id: Text
    product_id: Text
    address: Text
    offset: Count


class V1Cancel(Struct, gc=False):
    order_id: Text


class V1Done(Struct, gc=False):
    order_id: Text
    success: bool = True


class V1OrderId(Struct, gc=False):
    """FULFILLED and FAILED."""

    order_id: str


class V1Work(Struct, gc=False):
    order_id: str
    product_id: str
    address: str
    offset: int


# --- encoding ---------------------------------------------------------------------------

M = TypeVar("M", bound=Struct)

encode = msgspec.msgpack.Encoder().encode
"""One message's fields to bytes."""

EMPTY = encode({})
"""The fields of a message that has none."""


def reader(kind: type[M]) -> Callable[[bytes], M]:
    """A function from a message's fields, in bytes, to ``kind``.

    It raises ProtocolError, with the first fault in words, and nothing else, whatever the bytes.
    """
    decode = msgspec.msgpack.Decoder(kind).decode
    command = command_of(kind.__name__)

    def read(fields: bytes) -> M:
        try:
            return decode(fields)
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as fault:
            said = in_words(str(fault)) or type(fault).__name__
            raise ProtocolError(f"{command}: {said}") from fault

    return read


class _Seq(Struct, gc=False):
    seq: Count = 0


class _Version(Struct, gc=False):
    protocol: Count = 1


class _Patterns(Struct, gc=False):
    product_ids: msgspec.Raw = msgspec.Raw()


_read_seq = reader(_Seq)
_read_patterns = reader(_Patterns)
_read_version = reader(_Version)


def seq_of(fields: bytes) -> int:
    """The ``seq`` of a message that may be wrong in all else; 0 when there is none to be had."""
    try:
        return _read_seq(fields).seq
    except ProtocolError:
        return 0


def version_of(fields: bytes) -> int:
    """The version that a HELLO asks for, at most ours. A HELLO without fields is version 1."""
    return min(_read_version(fields).protocol, PROTOCOL) if fields else 1


def is_suppliers(hello: bytes) -> bool:
    """Whether a HELLO is a supplier's: it names patterns. Raises ProtocolError."""
    return bool(hello) and bool(memoryview(_read_patterns(hello).product_ids))


def refusal(
    code: str, error: str, seq: int = 0, refused: Sequence[str] = (), terms: str = ""
) -> bytes:
    """The fields of a REPLY that says no."""
    return encode(Reply(seq=seq, code=code, error=error, refused=list(refused), terms=terms))
