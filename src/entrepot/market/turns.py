"""Whose turn it is to sleep on a socket that several threads share.

There is no thread between a user and the socket. Whoever waits becomes the *leader*: it sleeps
without the lock, on the socket's descriptor, so that others can take the lock and send meanwhile.
Other waiters *follow*: each sleeps on a lock of its own, and the leader wakes the one whose wish
came true. A leader that stops hands over to one who still waits.
"""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Callable

from entrepot.market.wake import Wake

Wish = Callable[[], bool]


class Turns:
    """The lock, the leader and the followers. All methods but :meth:`poke` want the lock held.

    :ivar led: whether somebody sleeps on the socket just now.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.led = False
        self._wake: Wake | None = None
        self._followers: list[tuple[Wish, threading.Lock]] = []

    def open(self) -> None:
        """Make the descriptor."""
        self._wake = Wake()

    def close(self) -> None:
        """Let go of the descriptor; whoever sleeps on it must be gone."""
        self._wake = None

    @property
    def wake_fd(self) -> int:
        """For the leader's poller to watch; -1 while there is none."""
        return -1 if self._wake is None else self._wake.fd

    def sleep(self, poller: select.poll, wish: Wish, timeout_s: float) -> bool:
        """Sleep until something may have come, or ``wish`` came true, or ``timeout_s`` passed.

        True when it seems that there is something on the socket for this thread to read.
        """
        if self.led:
            self._follow(wish, timeout_s)
            return False
        self.led = True
        self.lock.release()
        try:
            ready = poller.poll(math.ceil(timeout_s * 1000))
        finally:
            self.lock.acquire()
            self.led = False
        came = False
        wake = self._wake
        for fd, _ in ready:
            if wake is not None and fd == wake.fd:
                wake.clear()
                self.wake()
            else:
                came = True
        return came

    def _follow(self, wish: Wish, timeout_s: float) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        me = (wish, waiter)
        self._followers.append(me)
        self.lock.release()
        try:
            waiter.acquire(timeout=timeout_s)
        finally:
            self.lock.acquire()
            if me in self._followers:
                self._followers.remove(me)

    def wake(self) -> None:
        """Wake the followers whose wish came true."""
        if self._followers:
            for follower in [follower for follower in self._followers if follower[0]()]:
                self._followers.remove(follower)
                follower[1].release()

    def wake_all(self) -> None:
        """Wake everybody: there will be nothing to wait for."""
        for _, waiter in self._followers:
            waiter.release()
        self._followers.clear()
        self.poke()

    def changed(self) -> None:
        """Something happened that is no message."""
        self.wake()
        if self.led:
            self.poke()

    def hand_over(self) -> None:
        """Leave the socket to somebody who still waits; for whoever is done with waiting."""
        if self._followers and not self.led:
            self._followers.pop(0)[1].release()

    def poke(self) -> None:
        """Have the leader look again. From any thread or signal handler; wants no lock."""
        wake = self._wake
        if wake is not None:
            wake.set()
