"""The supplier: makes what is ordered under its patterns, and writes it where the order says."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from entrepot.errors import BrokerUnavailable, Closed, ConfigurationError, Refused
from entrepot.market.connection import CLOSED
from entrepot.market.party import party_name
from entrepot.market.protocol import Result, WorkItem
from entrepot.market.work import Maker, Products, Work, failure
from entrepot.market.worklist import Worklist
from entrepot.mediums import Attachments, attach
from entrepot.settings import SupplierSettings, read_settings

if TYPE_CHECKING:
    from typing import Self

    from entrepot.contract import Contract

__all__ = ["Supplier", "Work"]

logger = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often a ``stop_event`` is looked at."""

COMPLAIN_S = 10.0
"""How often a missing broker is mentioned in the log."""


class Supplier:
    """Serves a class of products with functions. One that raises fails its order, no more.

    It waits for a broker that is not there yet, comes back to one that restarted, and ends in
    order: what it holds is finished, and it says GOODBYE.

    >>> def make_layer(product_id: str) -> bytes: ...
    >>> with Supplier("tcp://broker:5556", {r"layer_\\d+": make_layer}) as supplier:
    ...     supplier.run()

    :param endpoint: the broker's backend, ``tcp://host:port`` or ``ipc:///path``.
    :param products: ``{pattern: function}``; the first pattern that matches all of a product id
        (RE2) chooses the function. Or ``(function, [patterns])``. A function is
        ``f(product_id) -> bytes``, or anything with a C-contiguous buffer, or, under a contract, a
        mapping of tensors; or ``f(work, out) -> nbytes``, which fills the slot in place.
    :param name: shown in statistics, logs and errors; host and process id by default.
    :param credit: orders held at once, in place of the setting.
    :param batch: orders liked at once.
    :param exclusive: nobody else may register any of these patterns.
    :param contracts: what the bytes of each pattern's products mean.
    :param settings: timeouts, limits and mediums that are taken; by default what the environment
        says. Its endpoint is for who makes the arguments.
    :param clock: seconds, going up.
    :ivar served: orders made.
    :ivar failed: orders whose function raised, or whose product could not be written.
    :raises PatternRefused: a pattern is none that a broker takes.
    """

    def __init__(
        self,
        endpoint: str,
        products: Products,
        *,
        name: str = "",
        credit: int | None = None,
        batch: int = 1,
        exclusive: bool = False,
        contracts: Mapping[str, Contract] | None = None,
        settings: SupplierSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or read_settings().supplier
        credit = settings.credit if credit is None else credit
        for what, value in (("credit", credit), ("batch", batch)):
            if not 1 <= value <= 65_536:
                raise ConfigurationError(f"{what} must be 1 to 65536, got {value}")
        contracts = contracts or {}
        self.endpoint = endpoint
        self.name = party_name(name)
        self.served = 0
        self.failed = 0
        self._settings = settings
        self._clock = clock
        allowed = {name.strip() for name in settings.mediums.split(",") if name.strip()}
        self._attachments = Attachments(
            settings.max_attachments,
            attach=partial(attach, settings=settings, allowed=allowed or None),
        )
        self._maker = Maker(products, contracts, self._attachments, clock)
        self._worklist = Worklist(
            endpoint,
            self._maker.patterns,
            name=self.name,
            credit=credit,
            batch=batch,
            exclusive=exclusive,
            contracts={pattern: contract.digest for pattern, contract in contracts.items()},
            timeout_s=settings.timeout_s,
            silence_s=settings.silence_s,
            tidy=self._maker.tidy,
            clock=clock,
        )
        self._connection = self._worklist.connection
        self._stopping = False
        self._stopping_since: float | None = None
        self._stop_event: threading.Event | None = None
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    # --- serving ------------------------------------------------------------------------

    def run(
        self, stop_event: threading.Event | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Serve, in this thread, until :meth:`stop`, a signal, or the broker's TERMINATE.

        Then what is held is finished, for ``drain_s`` at most, and the supplier is closed. In the
        main thread SIGTERM and SIGINT end it so; a second signal does what it did before.

        :param stop_event: ends it likewise once it is set.
        :param timeout_s: seconds to be without a broker; without it, as long as it takes.
        :raises BrokerUnavailable: there was none for that long.
        :raises PatternRefused: the broker does not take a pattern.
        :raises Closed: it ran before.
        """
        self._connection.check()
        if not self._running.acquire(blocking=False):
            raise Closed(f"supplier {self.name} runs already; make another one")
        self._stop_event = stop_event
        try:
            with self._signals():
                self._serve(timeout_s)
        finally:
            self._running.release()
            self.close()

    def start(self) -> Self:
        """Serve in a thread of its own; returns at once. See :meth:`wait_registered`."""
        self._connection.check()
        if self._thread is not None:
            raise Closed(f"supplier {self.name} was started before; make another one")
        self._thread = threading.Thread(target=self._run_apart, name=f"supplier {self.name}")
        self._thread.start()
        return self

    def _run_apart(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            logger.error("the supplier ended", extra={"supplier": self.name, "why": error})

    def wait_registered(self, timeout_s: float | None = None) -> None:
        """Wait until a broker has taken the patterns; after :meth:`start`, or beside :meth:`run`.

        :raises BrokerUnavailable: none did in ``timeout_s``, by default the setting's.
        """
        limit_s = self._settings.timeout_s if timeout_s is None else timeout_s
        connection, worklist = self._connection, self._worklist
        if self._thread is None or connection.forked:
            connection.check()

        def over() -> bool:
            return worklist.registered or self._error is not None

        try:
            with connection.lock:
                connection.start()  # the thread that serves may not have come to it yet
                connection.wait(over, self._clock() + limit_s, patient=True)
        except (Closed, Refused):
            if self._thread is not None:
                self._thread.join(limit_s)  # it has said why, or is about to
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        if not worklist.registered:
            raise BrokerUnavailable(self.endpoint, limit_s, "registering patterns")

    def stop(self, timeout_s: float | None = None) -> None:
        """Have it finish what it holds and end. Waits for that when it runs in its own thread.

        From any thread, also from the function that is making a product.

        :param timeout_s: seconds to wait; by default the setting ``drain_s`` and a little.
        :raises TimeoutError: a function is still at work. It cannot be interrupted.
        :raises EntrepotError: what ended it before.
        """
        if self._connection.forked:
            return
        self._begin_to_stop()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        limit_s = self._settings.drain_s + 5.0 if timeout_s is None else timeout_s
        thread.join(limit_s)
        if thread.is_alive():
            raise TimeoutError(
                f"supplier {self.name} is still making a product {limit_s:g} s after stop; end "
                f"the process if it must not"
            )
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Leave the broker and let go of all mediums. What is not finished goes to others.

        With a function at work, which cannot be interrupted and may write for a while yet, the
        broker is told nothing: it finds the supplier lost, and nobody is given that slot again.
        """
        if self._connection.forked:
            return
        self._stopping = True
        self._connection.close()
        self._attachments.close()

    # --- the loop -----------------------------------------------------------------------

    def _serve(self, timeout_s: float | None) -> None:
        connection, worklist, maker = self._connection, self._worklist, self._maker
        with connection.lock:
            connection.start()
        item = self._next(None, timeout_s)
        while item is not None:
            try:
                result = maker.make(item)
            except SystemExit as error:
                # A library that gives up is not a reason to: the order failed, others may not.
                result = failure(item, error)
            except BaseException as error:
                # Not the function's to catch, nor ours: say so, leave, and let it pass.
                with connection.lock:
                    worklist.finish(failure(item, error))
                    worklist.flush()
                raise
            connection.check_process()  # the function may have forked, and returned in the child
            self._count(result)
            item = self._next(result, timeout_s)
        self._drain()

    def _next(self, result: Result | None, timeout_s: float | None) -> WorkItem | None:
        """Hand in a result, and wait for the next order; None when it is time to end."""
        worklist = self._worklist
        with self._connection.lock:
            if result is not None:
                worklist.finish(result)
            complain_at = None
            while not self._has_news():
                complain_at = self._wait(complain_at, timeout_s)
            return None if self._ends() else worklist.take()

    def _wait(self, complain_at: float | None, timeout_s: float | None) -> float | None:
        """Wait for news, for a while; when to complain next of a broker that is not there."""
        connection, now = self._connection, self._clock()
        until = now + COMPLAIN_S
        down_since = connection.down_since
        if down_since is None:
            complain_at = None
        else:
            if timeout_s is not None:
                if now - down_since >= timeout_s:
                    raise BrokerUnavailable(self.endpoint, now - down_since, "registering patterns")
                until = min(until, down_since + timeout_s)
            if complain_at is None:
                complain_at = until
            elif now >= complain_at:
                complain_at = until
                logger.warning(
                    "no broker answers; trying on",
                    extra={"supplier": self.name, "endpoint": self.endpoint},
                )
        if self._stop_event is not None:
            until = min(until, now + LOOK_S)
        connection.wait(self._has_news, until, patient=True)
        return complain_at

    def _begin_to_stop(self) -> None:
        """From any thread or signal handler."""
        if self._stopping_since is None:
            self._stopping_since = self._clock()
        self._stopping = True
        self._connection.poke()

    def _has_news(self) -> bool:
        return bool(self._worklist.queue) or self._ends()

    def _ends(self) -> bool:
        return (
            self._stopping
            or self._worklist.terminated
            or (self._stop_event is not None and self._stop_event.is_set())
        )

    def _drain(self) -> None:
        """Finish what is held now; what comes from here on goes back with GOODBYE."""
        connection, worklist = self._connection, self._worklist
        with connection.lock:
            if connection.state == CLOSED:
                return
            left = len(worklist.queue)
        began = self._clock() if self._stopping_since is None else self._stopping_since
        limit = began + self._settings.drain_s
        logger.info("draining", extra={"supplier": self.name, "held": left})
        while left > 0 and self._clock() < limit:
            with connection.lock:
                if not worklist.queue:
                    break
                item = worklist.take()
            result = self._maker.make(item)
            self._count(result)
            with connection.lock:
                worklist.finish(result)
            left -= 1
        with connection.lock:
            worklist.flush()

    def _count(self, result: Result) -> None:
        if result.success:
            self.served += 1
            return
        self.failed += 1
        fault = result.error
        logger.warning(
            "an order failed",
            extra={
                "supplier": self.name,
                "order_id": result.order_id,
                "type": fault.type if fault else "",
                "why": fault.message if fault else "",
            },
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain, where Python lets us say so: in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}

        def restore() -> None:
            while before:
                number, handler = before.popitem()
                signal.signal(number, handler)

        def drain(_number: int, _frame: FrameType | None) -> None:
            self._begin_to_stop()
            restore()  # who asks twice means it

        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if handler is not None:  # else it was not set from Python, and could not be restored
                before[number] = handler
                signal.signal(number, drain)
        try:
            yield
        finally:
            restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            try:
                self.stop()
            finally:
                self.close()
        else:
            self.close()

    def __repr__(self) -> str:
        return f"<Supplier {self.name} of {', '.join(self._maker.patterns[:4])}>"
