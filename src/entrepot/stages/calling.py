"""Asking a stage: one order for one call, again when no answer comes, and errors by their kind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from entrepot.arguments import checked_int, checked_kind, checked_seconds, checked_text
from entrepot.errors import (
    OrderFailed,
    OrderTimeout,
    ProductTooLarge,
    Refused,
    StageLost,
    StageMismatch,
    StageRequestLate,
    StageUnavailable,
)
from entrepot.logs import why_of
from entrepot.market.client import Client
from entrepot.market.product import Product
from entrepot.mediums.spare import LEAST_NBYTES
from entrepot.stages.protocol import (
    DESCRIBE,
    REPLY,
    REQUEST,
    Message,
    Reply,
    Request,
    checked_name,
    error_of,
    product_of,
)
from entrepot.stages.recycling import Recycling
from entrepot.stages.values import Value, worth_it

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""Seconds that a stage has to answer, unless told otherwise."""

ATTEMPTS = 2
"""Orders for one call, each with its part of that time. A stage knows a call that it has seen."""

PAUSE_S = 1.0
"""Seconds after an order that failed before there is another. What a stage's function raises is its
answer: an order only fails where no answer could be brought back, and its tries are all made within
some milliseconds if one server is all there is. A name or a way that is not found then may be
found a little later."""


@dataclass(frozen=True)
class Description:
    """What a stage says of itself.

    :ivar stage: its name.
    :ivar version: what whoever serves it calls it; empty if nothing.
    :ivar parameters: SHA-256 over its parameters and buffers; empty where there are none.
    :ivar host: who answered; where there are several, any of them.
    :ivar instance: another each time that a server is started.
    :ivar step: how many steps were applied to these parameters.
    """

    stage: str
    version: str
    parameters: str
    host: str
    instance: str
    step: int


class Caller:
    """Calls one stage, through a client that others may use as well.

    Each call takes two slots of the client's medium; one that timed out may have them a while
    longer.

    :param timeout_s: seconds for a call, all attempts together.
    :param attempts: orders for one call, at most.
    :param version: the stage's, if it has to be that one.
    :ivar host: who answered last.
    :ivar sent: whether the last call left this machine.
    :ivar recycling: memory for what comes back.
    """

    def __init__(
        self,
        client: Client,
        stage: str,
        *,
        timeout_s: float = TIMEOUT_S,
        attempts: int = ATTEMPTS,
        version: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        checked_kind("client", client, Client, "Client(endpoint, medium) makes one")
        self.client = client
        self.stage = checked_name(stage)
        self.timeout_s = checked_seconds("timeout_s", timeout_s)
        self.version = checked_text("version", version, 512)
        self.host = ""
        self.sent = False
        self.recycling = Recycling()
        self._attempts = checked_int("attempts", attempts, 1)
        self._clock = clock
        self._sleep = sleep
        self._expected: dict[str, int] = {}

    def ask(
        self,
        request: Request,
        values: Mapping[str, object] | None,
        read: Callable[[Reply, dict[str, Value]], Result],
    ) -> Result:
        """What ``read`` makes of the reply and its values. Arrays are good while it runs; those
        that may be written to are the caller's to keep.

        :raises StageUnavailable: nobody answered in the caller's ``timeout_s``.
        :raises ProductTooLarge: the request, or the reply, has more bytes than a slot.
        :raises StageError: what the stage said went wrong.
        """
        self.sent = False
        request.stage = self.stage
        request.wants = self.version
        message = REQUEST.encode(request, values)
        slot_nbytes = self.client.medium.slot_nbytes
        if message.nbytes > slot_nbytes:
            raise ProductTooLarge(
                f"stage {self.stage!r} is to be sent {message.nbytes} bytes, and the client's "
                f"slots have {slot_nbytes}; make its medium with larger slots, or send less at once"
            )
        deadline = self._clock() + self.timeout_s
        for left in range(self._attempts, 0, -1):
            product = self._product(request, message, deadline, left)
            if product is None:
                continue
            with product:
                self._expected[request.verb] = product.nbytes
                landed = product.landed
                reply, answer = REPLY.decode(product.data if landed is None else landed)
                if reply.host:
                    self.host = reply.host
                if reply.code == StageRequestLate.code and left > 1:
                    continue  # this process was stopped while it wrote that
                if reply.code != "ok":
                    raise error_of(reply, self.stage)
                if landed is not None:
                    answer = {name: worth_it(each, len(landed)) for name, each in answer.items()}
                return read(reply, answer)
        known = f"; {self.host} answered before" if self.host else ""
        raise StageUnavailable(
            f"nobody answered for stage {self.stage!r} within {self.timeout_s:g} s{known}; start a "
            f"server of that stage, or allow more than timeout_s={self.timeout_s:g} if it is slow",
            self.stage,
            self.host,
        )

    def _product(
        self, request: Request, message: Message, deadline: float, left: int
    ) -> Product | None:
        """The reply's bytes, of the first of ``left`` orders; None where it brought none."""
        rest_s = deadline - self._clock()
        if rest_s <= 0:  # this process was stopped for longer than a call may take
            return None
        product_id = product_of(self.stage, request.verb)
        # Calls of one kind have replies of one size, more often than not.
        expected = self._expected.get(request.verb, 0)
        aims = self.client.medium.aims and expected >= LEAST_NBYTES
        into = self.recycling.take(expected) if aims else None
        self.sent = True
        order = self.client.order(product_id, input=message, into=into, timeout_s=rest_s)
        try:
            return order.result(max(0.0, deadline - self._clock()) / left)
        except OrderTimeout:
            order.cancel()
        except OrderFailed as error:
            late = self._clock() + PAUSE_S >= deadline
            if left == 1 or late or error.reason != "attempts":
                self._failed(request, error)
            logger.warning(
                "a call of a stage is made again: %s",
                why_of(error),
                extra={"stage": self.stage, "product_id": product_id, "why": error},
            )
            self._sleep(PAUSE_S)
        except Refused as error:
            if error.code != "contract_mismatch":
                raise
            raise StageMismatch(
                f"stage {self.stage!r} and this client do not agree: {error}", self.stage
            ) from error
        return None

    def _failed(self, request: Request, error: OrderFailed) -> NoReturn:
        if error.reason == "lost":
            what = "restore() continues from its checkpoint" if request.run else "look at its log"
            raise StageLost(
                f"who served stage {self.stage!r} died of it ({self.host or 'host unknown'}), and "
                f"so did who took its place: {error}; {what}",
                self.stage,
                self.host,
            ) from error
        raise StageUnavailable(
            f"no answer of stage {self.stage!r} came: {error}", self.stage, self.host
        ) from error

    def describe(self, request: Request | None = None) -> Description:
        """What the stage says of itself. See :meth:`ask`."""
        return self.ask(request or Request(stage=self.stage, verb=DESCRIBE), None, self._described)

    def _described(self, reply: Reply, values: dict[str, Value]) -> Description:
        del values
        info = reply.info
        return Description(
            self.stage,
            str(info.get("version", "")),
            str(info.get("parameters", "")),
            reply.host,
            reply.instance,
            reply.step,
        )
