"""What a loader's feeds are to do, and how those in other processes are told.

A plan replaces the one before it as a whole, and whatever was made under an earlier plan is not
served. That is all that a switch, a new epoch and a resume are.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

import msgspec
import xxhash

from entrepot.training.epochs import Run, Shard


class Plan(msgspec.Struct, frozen=True):
    """What is wanted from now on.

    :ivar number: grows by one with each plan.
    :ivar source: the stream's product id; for indexed products their ids, with ``{index}`` in it,
        or nothing where a function gives them.
    :ivar shard: of indexed products.
    :ivar done: the offsets that were consumed.
    :ivar closed: nothing is wanted any more.
    """

    number: int
    source: str = ""
    shard: Shard | None = None
    done: list[Run] = []
    closed: bool = False


class Plans(Protocol):
    """The latest plan, as who carries it out sees it."""

    def number(self) -> int:
        """Its number; asked before and after each product."""

    def read(self) -> Plan:
        """All of it."""

    def orphaned(self) -> bool:
        """Whether the process that plans has ended."""


class OwnPlans:
    """For a feed in this process."""

    def __init__(self) -> None:
        self._plan = Plan(0)

    def write(self, plan: Plan) -> None:
        self._plan = plan

    def number(self) -> int:
        return self._plan.number

    def read(self) -> Plan:
        return self._plan

    def orphaned(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to let go of."""


HEAD = struct.Struct("=QQQ")
"""Number of the plan, bytes of it, XXH3 of them."""


class SharedPlans:
    """For feeds in other processes, forked or spawned: a piece of memory without a lock.

    A lock would stay locked when the process that has it is killed. A plan that is read while it is
    written has another checksum than it says, and is read again.
    """

    def __init__(self, fd: int | None = None, maker: int | None = None) -> None:
        self._fd = os.memfd_create("entrepot-loader", os.MFD_CLOEXEC) if fd is None else fd
        # Not its id: who asks for its parent's once that has ended is told another's.
        self._maker = os.pidfd_open(os.getpid()) if maker is None else maker
        if fd is None:
            os.ftruncate(self._fd, mmap.PAGESIZE)
            self.write(Plan(0))

    def write(self, plan: Plan) -> None:
        """For one process alone, the one that made it."""
        body = msgspec.msgpack.encode(plan)
        head = HEAD.pack(plan.number, len(body), xxhash.xxh3_64_intdigest(body))
        os.pwrite(self._fd, head + body, 0)

    def number(self) -> int:
        found: int = HEAD.unpack(os.pread(self._fd, HEAD.size, 0))[0]
        return found

    def read(self) -> Plan:
        while True:
            _, nbytes, checksum = HEAD.unpack(os.pread(self._fd, HEAD.size, 0))
            body = os.pread(self._fd, nbytes, HEAD.size)
            if xxhash.xxh3_64_intdigest(body) == checksum:
                return msgspec.msgpack.decode(body, type=Plan)
            os.sched_yield()

    def orphaned(self) -> bool:
        ended = select.poll()
        ended.register(self._maker, select.POLLIN)
        return bool(ended.poll(0))

    def close(self) -> None:
        """Let go of it; any number of times."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            os.close(self._maker)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (DupFd(self._fd), DupFd(self._maker))


def _reopened(*descriptors: Any) -> SharedPlans:
    return SharedPlans(*(descriptor.detach() for descriptor in descriptors))
