"""Serving a stage: a request of an order's input, its reply in the order's slot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from entrepot.arguments import checked_text, shown
from entrepot.errors import (
    BadStageMessage,
    Closed,
    PatternRefused,
    ProductTooLarge,
    StageFailed,
    StageMismatch,
    StageRequestLate,
    StillAtWork,
)
from entrepot.logs import Traces, traced, why_of
from entrepot.market.apart import ends_with_program
from entrepot.market.party import party_name
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums.spare import Spare, own
from entrepot.settings import SupplierSettings
from entrepot.stages.protocol import (
    REPLY,
    REQUEST,
    Message,
    Reply,
    Request,
    checked_name,
    is_written,
    product_of,
    said_of,
)
from entrepot.stages.values import Value

if TYPE_CHECKING:
    from typing import Self

    from entrepot.contract import Contract

WRITTEN_S = 2.0
"""Seconds that a client may take to write a request after its order has come. It calls again if it
was stopped for longer in the middle of that, and others are not kept waiting for it."""

LOOK_S = 5e-5
"""How often it is looked whether that is there; it almost always is at the first look."""

Answer: TypeAlias = tuple[Reply, Mapping[str, object]]

logger = logging.getLogger(__name__)
logger.addFilter(traced)


class Server:
    """A supplier of one stage. ``answer`` makes replies; what it raises is a reply as well.

    :param verbs: what is served of the stage.
    :param contract: what callers have to agree on: one whose client has another is refused, and
        told the difference.
    :param exclusive: nobody else may serve the stage. One that may just be dying is waited for, as
        long as the setting ``timeout_s`` says.
    """

    def __init__(
        self,
        endpoint: str,
        stage: str,
        verbs: Sequence[str],
        answer: Callable[[Request, dict[str, Value]], Answer],
        *,
        version: str,
        name: str,
        exclusive: bool,
        settings: SupplierSettings | None,
        contract: Contract | None = None,
    ) -> None:
        self.endpoint = checked_text("endpoint", endpoint)
        self.stage = checked_name(stage)
        self.version = checked_text("version", version, 512)
        self.name = party_name(name)
        self._answer = answer
        self._spare = Spare()
        self._traces = Traces("entrepot.market.", "entrepot.mediums.", "entrepot.stages.")
        patterns = [product_of(stage, verb).replace(".", r"\.") for verb in verbs]
        self._supplier = Supplier(
            self.endpoint,
            dict.fromkeys(patterns, self._fill),
            name=self.name,
            credit=1,
            exclusive=exclusive,
            contracts=None if contract is None else dict.fromkeys(patterns, contract),
            settings=settings,
        )
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    # --- one order ----------------------------------------------------------------------

    def _fill(self, work: Work, out: memoryview) -> list[Any]:
        try:
            reply, values = self._answered(work)
            reply.host = self.name
            message = self._encoded(reply, values)
            if message.nbytes > len(out):
                raise ProductTooLarge(
                    f"the reply of stage {self.stage!r} has {message.nbytes} bytes, and the "
                    f"client's slots have {len(out)}; make its medium with larger slots"
                )
        except Exception as error:
            code, sentence = said_of(error)
            logger.warning(
                "a call of a stage failed, %s: %s",
                shown(work.product_id),
                why_of(error),
                extra={"stage": self.stage, "product_id": work.product_id, "why": sentence},
                exc_info=self._traces.of(error),
            )
            message = REPLY.encode(Reply(code=code, error=sentence, host=self.name))
        return message.parts

    def _encoded(self, reply: Reply, values: Mapping[str, object]) -> Message:
        try:
            return REPLY.encode(reply, values)
        except BadStageMessage as error:
            raise StageFailed(
                f"what the function of stage {self.stage!r} returned cannot be sent: {error}"
            ) from error

    def _answered(self, work: Work) -> Answer:
        if work.input is None:
            raise BadStageMessage(f"an order of {work.product_id!r} came without an input")
        request, values = self._read(work, work.input)
        if product_of(request.stage, request.verb) != work.product_id:
            raise BadStageMessage(
                f"an order of {work.product_id!r} came with a request for {request.verb!r:.40} of "
                f"stage {request.stage!r:.80}"
            )
        if request.wants not in ("", self.version):
            raise StageMismatch(
                f"version {request.wants!r} of stage {self.stage!r} is wanted, and {self.name} has "
                f"version {self.version!r}; install the same on both, or ask for that one"
            )
        return self._answer(request, values)

    def _read(self, work: Work, data: memoryview) -> tuple[Request, dict[str, Value]]:
        """The request in memory that nobody else writes to, and that may be kept."""
        landed = own(data)
        if landed is not None:
            return REQUEST.decode(landed)
        if not is_written(data):
            self._wait_for(work, data)
        return REQUEST.decode_copy(data, self._spare.take(len(data)))

    def _wait_for(self, work: Work, data: memoryview) -> None:
        """Its client writes it just now, unless it died of it, or is stopped."""
        limit = time.monotonic() + WRITTEN_S
        while not is_written(data):
            if work.cancelled or time.monotonic() >= limit:
                raise StageRequestLate(
                    f"the request for {work.product_id!r} was not there {WRITTEN_S:g} s after its "
                    f"order: its client died, or was stopped, while it wrote it, or cancelled it"
                )
            time.sleep(LOOK_S)

    # --- life ---------------------------------------------------------------------------

    def run(
        self, stop_event: threading.Event | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Serve in this thread, until :meth:`stop`, a signal, or the broker's TERMINATE.

        :param stop_event: ends it likewise once it is set.
        :param timeout_s: seconds to be without a broker; without it, as long as it takes.
        :raises PatternRefused: another serves the stage, and one of the two is to be alone.
        """
        self._supplier.run(stop_event, timeout_s=timeout_s)

    def start(self) -> Self:
        """Serve in a thread of its own; returns at once. See :meth:`wait_registered`.

        It serves until :meth:`stop`, or until the program ends.
        """
        if self._thread is not None:
            raise Closed(f"the server of stage {self.stage!r} was started before; make another one")
        self._thread = threading.Thread(
            target=self._run_apart, name=f"stage {self.stage}", daemon=True
        )
        ends_with_program(self)
        self._thread.start()
        return self

    def _run_apart(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            logger.error(
                "the server of stage %s ended: %s",
                self.stage,
                why_of(error),
                extra={"stage": self.stage, "why": error},
            )

    def wait_registered(self, timeout_s: float | None = None) -> None:
        """Wait until a broker knows the stage; after :meth:`start`, or beside :meth:`run`.

        :raises BrokerUnavailable: none did in ``timeout_s``, by default the setting's.
        :raises PatternRefused: another serves the stage, and one of the two is to be alone.
        """
        try:
            self._supplier.wait_registered(timeout_s)
        except (Closed, PatternRefused):
            if self._thread is not None:
                self._thread.join(timeout_s)  # it has said why, or is about to
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error

    def stop(self, timeout_s: float | None = None) -> None:
        """Have it finish what it has begun and end, from any thread. See ``Supplier.stop``.

        :raises StillAtWork: a call is. It cannot be interrupted.
        """
        self._supplier.stop(timeout_s)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            limit_s = self._supplier.patience_s if timeout_s is None else timeout_s
            thread.join(limit_s)
            if thread.is_alive():
                raise StillAtWork(
                    f"the server of stage {self.stage!r} is still at a call {limit_s:g} s after "
                    f"stop; end the process if it must not"
                )
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Leave the broker."""
        self._supplier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._thread is not None and self._thread is not threading.current_thread():
                self.stop()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.stage!r}, {self.name}>"
