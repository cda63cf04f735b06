"""What a connection asks of whoever it belongs to: a client's book, or a supplier's worklist."""

from __future__ import annotations

import os
import socket
from typing import Protocol

from entrepot.arguments import checked_text
from entrepot.errors import ConfigurationError
from entrepot.market.protocol import HelloReply, Reply

NAME_CHARS = 256
"""Longest name of a party; what the protocol allows."""


def party_name(name: str) -> str:
    """``name``, if it can be sent; host and process id in place of an empty one.

    :raises ConfigurationError: it is too long, or not text.
    """
    name = checked_text("name", name) or f"{socket.gethostname()}:{os.getpid()}"
    if len(name) > NAME_CHARS or not name.isprintable():
        raise ConfigurationError(
            f"a name is at most {NAME_CHARS} printable characters, got {name[:80]!r}"
        )
    return name


class Party(Protocol):
    """What a connection asks of the client or supplier it belongs to, always under the lock."""

    def hello(self, seq: int) -> bytes:
        """The fields of a HELLO."""

    def greeted(self, hello: HelloReply, resumed: bool) -> None:
        """HELLO was answered; ``resumed``: by a broker that knew the session."""

    def denied(self, reply: Reply) -> Exception | None:
        """HELLO was refused: what to raise to whoever waits, or None to try again soon."""

    def replied(self, reply: Reply) -> None:
        """Any other REPLY."""

    def received(self, command: bytes, fields: bytes) -> None:
        """Anything but REPLY. May raise ProtocolError."""

    def beat(self) -> bytes:
        """The fields of a HEARTBEAT; called once in ``beat_s``, also to tidy up."""
