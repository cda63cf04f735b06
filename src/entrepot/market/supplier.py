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

from entrepot.arguments import (
    LONGEST_S,
    checked_callable,
    checked_int,
    checked_kind,
    checked_text,
    checked_wait,
)
from entrepot.errors import BrokerUnavailable, Closed, ConfigurationError, Refused, StillAtWork
from entrepot.logs import why_of
from entrepot.market.apart import ends_with_program
from entrepot.market.batch import Batch
from entrepot.market.connection import IDLE
from entrepot.market.party import party_name
from entrepot.market.serving import Serving
from entrepot.market.terms import digests_of, terms_of
from entrepot.market.work import Maker, Products, Work
from entrepot.market.worklist import Worklist
from entrepot.mediums import Attachments, attach
from entrepot.settings import SupplierSettings, read_settings
from entrepot.signals import STOPS, handling

if TYPE_CHECKING:
    from typing import Self

    from entrepot.contract import Contract

__all__ = ["Batch", "Supplier", "Work"]

logger = logging.getLogger(__name__)


class Supplier(Serving):
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
        mapping of tensors; or ``f(work, out) -> nbytes``, which fills the slot in place, or returns
        a list of buffers that belong there; or a :class:`Batch`, whose function makes many orders
        in one call.
    :param name: shown in statistics, logs and errors; host and process id by default.
    :param credit: orders held at once, in place of the setting; by default at least as many as
        its largest batch has. Twice as many have the next batch at hand when one is made.
    :param batch: makes each function a :class:`Batch` of that size: it gets a list of
        :class:`Work`, also when the list has one. Functions of a Batch of their own keep it.
    :param exclusive: nobody else may register any of these patterns.
    :param contracts: what the bytes of each pattern's products mean.
    :param settings: timeouts, limits and mediums that are taken; by default what the environment
        says. Its endpoint is for who makes the arguments.
    :param clock: seconds, going up.
    :ivar served: orders made.
    :ivar failed: orders whose function raised, or whose product could not be written.
    :raises PatternRefused: a pattern is none that a broker takes.
    :raises ConfigurationError: an argument cannot be, such as a credit below the batch's size.
    """

    def __init__(
        self,
        endpoint: str,
        products: Products,
        *,
        name: str = "",
        credit: int | None = None,
        batch: int | None = None,
        exclusive: bool = False,
        contracts: Mapping[str, Contract] | None = None,
        settings: SupplierSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if settings is None:
            settings = read_settings().supplier
        checked_kind("settings", settings, SupplierSettings, "read_settings().supplier makes them")
        checked_kind("exclusive", exclusive, bool, "it is True or False")
        checked_callable("clock", clock)
        digests = digests_of(contracts)
        contracts = contracts or {}
        self.endpoint = checked_text("endpoint", endpoint)
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
        self._maker = maker = Maker(
            products,
            contracts,
            self._attachments,
            clock,
            batch=batch,
            batch_wait_s=settings.batch_wait_s,
            is_revoked=self._is_revoked,
        )
        largest = max(1, maker.largest)
        if credit is None:
            credit = max(settings.credit, largest)
        credit = checked_int("credit", credit, 1, 65_536)
        if credit < largest:
            raise ConfigurationError(
                f"with credit {credit} a batch of {largest} would never be full; leave credit "
                f"out, or give at least {largest}"
            )
        maker.waits = credit == 1
        self._worklist = Worklist(
            endpoint,
            maker.patterns,
            name=self.name,
            credit=credit,
            batch=largest,
            exclusive=exclusive,
            contracts=digests,
            terms=terms_of(contracts),
            timeout_s=settings.timeout_s,
            silence_s=settings.silence_s,
            tidy=maker.tidy,
            settled=self._settled,
            clock=clock,
            batch_of=maker.batch_of if maker.largest else None,
        )
        self._connection = self._worklist.connection
        self._making = False
        self._running = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def at_work(self) -> bool:
        """Whether an order is in hand: its function runs, or what it made is being written."""
        return self._connection.at_work

    # --- serving ------------------------------------------------------------------------

    def run(
        self, stop_event: threading.Event | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Serve, in this thread, until :meth:`stop`, a signal, or the broker's TERMINATE.

        Then what it holds and has not begun goes to others, what it has begun is finished, and the
        supplier is closed. In the main thread SIGTERM and SIGINT end it so; a second signal does
        what it did before.

        :param stop_event: ends it likewise once it is set.
        :param timeout_s: seconds to be without a broker; without it, as long as it takes.
        :raises BrokerUnavailable: there was none for that long.
        :raises PatternRefused: the broker does not take a pattern.
        :raises Closed: it ran before.
        """
        timeout_s = checked_wait("timeout_s", timeout_s)
        if stop_event is not None:
            checked_kind("stop_event", stop_event, threading.Event, "threading.Event() makes one")
        self._connection.check()
        if not self._running.acquire(blocking=False):
            raise Closed(f"supplier {self.name} runs already; make another one")
        self._worklist.stop_event = stop_event
        try:
            with self._signals():
                self._serve(timeout_s)
        finally:
            self._running.release()
            self.close()

    def start(self) -> Self:
        """Serve in a thread of its own; returns at once. See :meth:`wait_registered`.

        It serves until :meth:`stop`, or until the program ends; what it has begun it finishes.
        """
        self._connection.check()
        if self._thread is not None:
            raise Closed(f"supplier {self.name} was started before; make another one")
        thread = threading.Thread(target=self._run_apart, name=f"supplier {self.name}", daemon=True)
        ends_with_program(self)
        thread.start()
        self._thread = thread  # not before: Ctrl-C may come meanwhile, and leaving would join it
        return self

    def _run_apart(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            logger.error(
                "supplier %s ended: %s",
                self.name,
                why_of(error),
                extra={"supplier": self.name, "why": error},
            )

    def wait_registered(self, timeout_s: float | None = None) -> None:
        """Wait until a broker has taken the patterns; after :meth:`start`, or beside :meth:`run`.

        :raises BrokerUnavailable: none did in ``timeout_s``, by default the setting's.
        """
        given = checked_wait("timeout_s", timeout_s)
        limit_s = self._settings.timeout_s if given is None else given
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
                self._thread.join(min(limit_s, LONGEST_S))  # it has said why, or is about to
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        if not worklist.registered:
            raise BrokerUnavailable(self.endpoint, limit_s, "registering patterns")

    def stop(self, timeout_s: float | None = None) -> None:
        """Have it finish what it has begun and end. Waits for that when it runs in its own thread.

        What it holds beside goes to others at once. From any thread, also from the function that is
        making a product.

        :param timeout_s: seconds to wait; by default the setting ``drain_s`` and a little.
        :raises StillAtWork: a function is. It cannot be interrupted.
        :raises EntrepotError: what ended it before.
        """
        given = checked_wait("timeout_s", timeout_s)
        if self._connection.forked:
            return
        self._begin_to_stop()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        limit_s = self.patience_s if given is None else given
        thread.join(min(limit_s, LONGEST_S))
        if thread.is_alive():
            raise StillAtWork(
                f"supplier {self.name} is still making a product {limit_s:g} s after stop; end "
                f"the process if it must not"
            )
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def patience_s(self) -> float:
        """Seconds that :meth:`stop` waits unless told otherwise."""
        return self._settings.drain_s + 5.0

    def close(self) -> None:
        """Leave the broker and let go of all mediums. What is not finished goes to others.

        With a function at work, which cannot be interrupted and may write for a while yet, the
        broker is told nothing of its order: it finds the supplier lost, and nobody is given that
        slot again.
        """
        connection, worklist = self._connection, self._worklist
        if connection.forked:
            return
        worklist.stopping = True
        with connection.lock:
            if connection.state != IDLE:
                worklist.drain()
        connection.close()
        self._attachments.close()

    # --- signals ------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain, where Python lets us say so: in the main thread.

        A second one does what it did before, but never in the middle of what is ours: an exception
        there would leave a lock as nobody expects it. It is raised in the function, or in the end.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        told = False
        owed: list[int] = []

        def drain(number: int, frame: FrameType | None) -> None:
            nonlocal told
            if not told:
                told = True
                self._begin_to_stop()
            elif before[number] is signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            elif callable(before[number]):
                if self._making:
                    before[number](number, frame)
                else:
                    owed.append(number)

        # One that was not set from Python could not be restored.
        before: dict[int, Any] = {
            n: handler for n in STOPS if (handler := signal.getsignal(n)) is not None
        }
        try:
            # At once, also while the function is in a call that no signal interrupts.
            with handling(dict.fromkeys(before, drain), self._begin_to_stop):
                yield
        finally:
            if owed:
                signal.raise_signal(owed[0])

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
