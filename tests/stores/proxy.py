"""An HTTP proxy before a bucket that counts what is asked of it, and goes wrong when told to.

Requests are passed on as they came, the Host header too, so that signatures hold. A rule spoils the
next requests of a kind: how many, after how many, and how.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from enum import Enum
from io import BufferedReader
from types import TracebackType
from typing import Self

UPSTREAM_TIMEOUT_S = 60.0


class How(Enum):
    """What becomes of a request that a rule spoils."""

    LOST = "passed on; its reply is thrown away, and the connection cut"
    CUT = "not passed on; the connection is cut"
    ANSWERED = "not passed on; answered with the rule's status"
    DENIED = "passed on; answered with the rule's status whatever the server said"
    STALLED = "not passed on, and never answered"
    MUTE = "passed on, and never answered"
    HELD = "passed on once the rule is released"
    STRIPPED = "passed on without its If-None-Match, which only servers take that want no signature"


@dataclass
class Rule:
    """How requests are spoilt.

    :ivar method: the kind: PUT, GET, HEAD, DELETE, POST, or LIST for a GET that lists.
    :ivar key: a regular expression that is searched for in the path and query.
    :ivar times: how many are spoilt; ``skip`` as many pass before the first.
    :ivar status: the HTTP status of an answer; ``code`` the word that S3 has for it.
    :ivar reached: set when the first request was spoilt.
    :ivar release: to be set so that what is held is passed on.
    """

    how: How
    method: str = "PUT"
    key: str = ""
    times: int = 1
    skip: int = 0
    status: int = 500
    code: str = "InternalError"
    spoilt: int = field(default=0, init=False)
    reached: threading.Event = field(default_factory=threading.Event, init=False)
    release: threading.Event = field(default_factory=threading.Event, init=False)

    def takes(self, kind: str, target: str) -> bool:
        if kind != self.method or self.spoilt >= self.times or not re.search(self.key, target):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.spoilt += 1
        self.reached.set()
        return True


@dataclass(frozen=True)
class Asked:
    """A request as it came: its kind, the path with the query, and the headers' names."""

    kind: str
    target: str
    headers: frozenset[str]


class Cut(Exception):
    """The connection is to be closed without another byte."""


class FaultProxy:
    """Listens at :attr:`endpoint` and passes all on to another; a thread a connection.

    :param target: ``http://host:port`` of the server.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").rpartition(":")
        self._upstream = host, int(port)
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: list[Asked] = []
        self._open: set[socket.socket] = set()
        self._held = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, name="fault-proxy")
        self._accepting.start()

    # --- what a test does ---------------------------------------------------------------

    def spoil(
        self,
        how: How,
        method: str = "PUT",
        key: str = "",
        *,
        times: int = 1,
        skip: int = 0,
        status: int = 500,
        code: str = "InternalError",
    ) -> Rule:
        """Add a rule; it tells in ``spoilt`` how often it was used."""
        rule = Rule(how, method, key, times, skip, status, code)
        with self._lock:
            self._rules.append(rule)
        return rule

    def mend(self) -> None:
        """Forget all rules. What is stalled is cut, and what is held passed on."""
        with self._lock:
            for rule in self._rules:
                rule.release.set()
            self._rules.clear()
            held, self._held = self._held, threading.Event()
        held.set()

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """What is asked inside, by kind; filled when it is left."""
        counts: Counter[str] = Counter()
        began = len(self._seen)
        yield counts
        counts.update(asked.kind for asked in self._seen[began:])

    @property
    def seen(self) -> list[Asked]:
        """All that was ever asked."""
        return list(self._seen)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # whoever it let in last is known from here on
        self._listener.close()
        self.mend()
        with self._lock:
            for end in self._open:
                _shut(end)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the threads --------------------------------------------------------------------

    def _start(self, target: object, args: tuple[object, ...]) -> None:
        thread = threading.Thread(target=target, args=args, name="fault-proxy")  # type: ignore[arg-type]  # both are ours
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(near)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start(self._serve, (near,))

    def _serve(self, near: socket.socket) -> None:
        far = http.client.HTTPConnection(*self._upstream, timeout=UPSTREAM_TIMEOUT_S)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = near.makefile("rb")
        try:
            while self._one(near, reader, far):
                pass
        except (Cut, OSError, http.client.HTTPException):
            pass
        finally:
            with self._lock:
                self._open.discard(near)
            _shut(near)
            reader.close()
            near.close()
            far.close()

    def _one(
        self, near: socket.socket, reader: BufferedReader, far: http.client.HTTPConnection
    ) -> bool:
        """Serve one request; whether there may be another on this connection."""
        words = reader.readline(1 << 16).decode("latin-1").split()
        if len(words) != 3:
            return False
        method, target, _ = words
        headers = http.client.parse_headers(reader)
        body = reader.read(int(headers.get("content-length", "0")))
        kind = "LIST" if method == "GET" and "list-type=2" in target else method
        with self._lock:
            self._seen.append(Asked(kind, target, frozenset(map(str.lower, headers.keys()))))
            rule = next((rule for rule in self._rules if rule.takes(kind, target)), None)
            held = self._held
        if rule is not None and rule.how in (How.CUT, How.ANSWERED, How.STALLED):
            if rule.how is How.ANSWERED:
                near.sendall(_refusal(rule, method))
                return True
            if rule.how is How.STALLED:
                held.wait()
            raise Cut
        if rule is not None and rule.how is How.HELD:
            rule.release.wait(UPSTREAM_TIMEOUT_S)
            rule = None
        if rule is not None and rule.how is How.STRIPPED:
            del headers["if-none-match"]
            rule = None
        reply = self._pass_on(far, method, target, headers, body)
        if rule is not None and rule.how is How.DENIED:
            near.sendall(_refusal(rule, method))
            return True
        if rule is not None:
            if rule.how is How.MUTE:
                held.wait()
            raise Cut
        near.sendall(reply)
        return True

    def _pass_on(
        self,
        far: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Message,
        body: bytes,
    ) -> bytes:
        far.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name.lower() != "connection":
                far.putheader(name, value)
        far.endheaders(body)
        response = far.getresponse()
        data = response.read()
        lines = [f"HTTP/1.1 {response.status} {response.reason}"]
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                lines.append(f"{name}: {value}")
        length = response.getheader("content-length") if method == "HEAD" else str(len(data))
        if length is not None and response.status not in (204, 304):
            lines.append(f"content-length: {length}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def _refusal(rule: Rule, method: str) -> bytes:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>'
        f"<Error><Code>{rule.code}</Code><Message>spoilt</Message></Error>"
    ).encode()
    head = (
        f"HTTP/1.1 {rule.status} {http.client.responses.get(rule.status, 'Spoilt')}\r\n"
        f"content-type: application/xml\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
