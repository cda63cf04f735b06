"""What a supplier's thread does: take orders, have them made, hand in results, and wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from entrepot.arguments import shown
from entrepot.errors import BrokerUnavailable
from entrepot.logs import in_a_line, traced, why_of
from entrepot.market.connection import Connection
from entrepot.market.protocol import Result, WorkItem
from entrepot.market.work import Maker
from entrepot.market.worklist import Worklist
from entrepot.market.writes import failure

logger = logging.getLogger("entrepot.market.supplier")
logger.addFilter(traced)

LOOK_S = 0.1
"""How often a ``stop_event`` is looked at."""

COMPLAIN_S = 10.0
"""How often a missing broker is mentioned in the log."""


class Serving:
    """The loop, of which :class:`~entrepot.market.supplier.Supplier` is what users see."""

    name: str
    endpoint: str
    served: int
    failed: int
    _clock: Callable[[], float]
    _connection: Connection
    _maker: Maker
    _making: bool
    _worklist: Worklist

    def _serve(self, timeout_s: float | None) -> None:
        connection, worklist, maker = self._connection, self._worklist, self._maker
        with connection.lock:
            connection.start()
        items = self._next([], timeout_s)
        while items is not None:
            try:
                self._making = True
                try:
                    results = maker.make(items)
                finally:
                    self._making = False
            except SystemExit as error:
                # A library that gives up is not a reason to: the order failed, others may not.
                results = [maker.failure(item, error) for item in items]
            except BaseException as error:
                # Not the function's to catch, nor ours: say so, leave, and let it pass.
                with connection.lock:
                    worklist.finish([failure(item, error) for item in items])
                self._finish_writes()
                with connection.lock:
                    worklist.flush()
                raise
            connection.check_process()  # the function may have forked, and returned in the child
            items = self._next(self._counted(results), timeout_s)
        with connection.lock:
            worklist.drain()
        self._finish_writes()
        with connection.lock:
            worklist.flush()

    def _next(self, results: Sequence[Result], timeout_s: float | None) -> list[WorkItem] | None:
        """Hand in results, and wait for the next orders; None when it is time to end."""
        worklist, maker = self._worklist, self._maker
        if maker.gathered:
            if maker.slow:
                results = [*results, *self._counted(maker.wait_for_last())]
            elif worklist.is_due(maker.gathered, maker.gathered_since) and maker.push():
                results = [*results, *self._settled()]
        with self._connection.lock:
            if results or not maker.under_way:
                worklist.finish(results)
            complain_at = None
            while True:
                while not self._has_news():
                    if maker.under_way:
                        self._wait_for_writes(self._has_news, self._clock() + LOOK_S)
                    else:
                        complain_at = self._wait(complain_at, timeout_s)
                if maker.largest:
                    self._gather()
                if self._ends():
                    return None
                if worklist.queue:  # a broker that restarted has ended what was gathered
                    return worklist.take()

    # --- writes under way ---------------------------------------------------------------

    def _wait_for_writes(self, done: Callable[[], bool], until: float) -> None:
        """Wait until some have arrived, or ``done``; with the lock, which is let go of."""
        connection, maker, worklist = self._connection, self._maker, self._worklist
        results: list[Result] = []
        connection.lock.release()
        try:
            if worklist.full and maker.clients == 1:  # there is nothing else to wait for
                results = self._counted(maker.wait())
            else:
                maker.push()
        finally:
            connection.lock.acquire()
        if not results:

            def over() -> bool:
                results.extend(self._settled())
                return bool(results) or done()

            connection.wait(over, until, patient=True, also=maker.descriptors())
        worklist.finish(results)

    def _finish_writes(self) -> None:
        """Wait for all that are under way."""
        while self._maker.under_way:
            results = self._counted(self._maker.wait())
            with self._connection.lock:
                self._worklist.finish(results)

    def _settled(self) -> list[Result]:
        """The results of writes that are over by now. From any thread."""
        return self._counted(self._maker.settled())

    def _is_revoked(self, lease: int) -> bool:
        return self._worklist.is_revoked(lease)

    # --- waiting ------------------------------------------------------------------------

    def _gather(self) -> None:
        """Take in what has come, and wait for what may be made with it as long as that may."""
        connection, maker, worklist = self._connection, self._maker, self._worklist

        def over() -> bool:
            return worklist.gathered or self._ends()

        until = worklist.gather_until
        while not over():
            now = self._clock()
            look_at = min(until, now + LOOK_S)
            if now < until:
                worklist.flush()  # who waits for these may be who orders next
            if now < until and maker.under_way:
                self._wait_for_writes(over, look_at)
            else:
                connection.wait(over, look_at, patient=True)
            if self._clock() >= until:
                return

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
                    "no broker answers at %s; trying on",
                    self.endpoint,
                    extra={"supplier": self.name, "endpoint": self.endpoint},
                )
        if self._worklist.stop_event is not None:
            until = min(until, now + LOOK_S)
        connection.wait(self._has_news, until, patient=True)
        return complain_at

    def _begin_to_stop(self) -> None:
        """From any thread or signal handler."""
        self._worklist.stopping = True
        self._connection.poke()
        self._connection.beat_soon()  # the thread that serves may be at work for a long time yet

    def _has_news(self) -> bool:
        return bool(self._worklist.queue) or self._ends()

    def _ends(self) -> bool:
        return self._worklist.ends

    def _counted(self, results: list[Result]) -> list[Result]:
        for result in results:
            if result.success:
                self.served += 1
                continue
            self.failed += 1
            self._tell(result)
        return results

    def _tell(self, result: Result) -> None:
        """An order failed. The first from one place in a function says where that is."""
        raised = self._maker.raised(result.lease)
        if raised is None:
            return  # it was said
        item, error = raised
        fault = result.error
        logger.warning(
            "order %s for %s failed: %s",
            in_a_line(item.order_id, 80),
            shown(item.product_id),
            why_of(error),
            extra={
                "supplier": self.name,
                "order_id": item.order_id,
                "product_id": item.product_id,
                "type": fault.type if fault else "",
                "why": fault.message if fault else "",
            },
            exc_info=self._maker.traces.of(error),
        )
