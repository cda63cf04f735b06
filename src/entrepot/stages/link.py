"""One user's end of a run: which step it is at, and what became of the last call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from entrepot.errors import (
    NoCheckpoint,
    OutOfStep,
    ProductTooLarge,
    StageError,
    StageLost,
    StageMismatch,
    StageUnavailable,
)
from entrepot.stages.calling import Caller, Description
from entrepot.stages.protocol import CHECKPOINT, DESCRIBE, END, RESTORE, STEP, Reply, Request
from entrepot.stages.values import Value

Reading = Callable[[Reply, dict[str, Value]], None]
"""Makes something of a reply while its values are there."""

PASS = "pass"
"""What is in doubt after a forward or a backward that was not answered."""

_STATE = ("begin", "instance", "host", "step", "call", "answered", "zero", "doubt", "stepping")
"""What is known here of a run."""


class Link:
    """Numbers the calls of a run, so that its server carries each out once.

    A call that leaves something behind names the one that was answered before it. When one is not
    answered it is *in doubt*: a step can be called again, and after anything else the step begins
    anew, with gradients of zero.

    :ivar begin: a nonce; the server builds a run for each.
    :ivar instance: the server that has the run; empty before it has said so.
    :ivar host: the name of that server, for people.
    :ivar step: how many steps were made, as far as is known here.
    :ivar call: the number of the last call, and
    :ivar answered: of the last that was answered.
    :ivar zero: gradients are to be zero before the next call.
    :ivar doubt: what was not answered; empty when everything was.
    """

    def __init__(self, caller: Caller, run: str, config: str) -> None:
        self.caller = caller
        self.run = run
        self.config = config
        self._lock = threading.RLock()
        self._anew()

    def _anew(self) -> None:
        self.begin = os.urandom(16).hex()
        self.instance = self.host = ""
        self.step = self.call = self.answered = 0
        self.zero = False
        self.doubt = ""
        self.stepping: Request | None = None

    def _state(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _STATE)

    def _go_back(self, before: tuple[Any, ...]) -> None:
        for name, value in zip(_STATE, before, strict=True):
            setattr(self, name, value)

    def request(self, verb: str) -> Request:
        """A request at this step."""
        return Request(
            stage=self.caller.stage,
            verb=verb,
            run=self.run,
            config=self.config,
            begin=self.begin,
            instance=self.instance,
            step=self.step,
        )

    # --- calls that leave something behind ----------------------------------------------

    def numbered(
        self,
        verb: str,
        values: Mapping[str, object],
        read: Reading,
        *,
        train: bool = False,
        keep: bool = False,
        of: int | None = None,
        names: list[str] | None = None,
    ) -> int:
        """Call it; the number of the call."""
        with self._lock:
            if self.stepping is not None and verb == STEP:
                request = self.stepping
            else:
                self._check_doubt()
                self.call += 1
                request = self.request(verb)
                request.call, request.after, request.zero = self.call, self.answered, self.zero
                request.train, request.keep, request.of = train, keep, of
                request.names = names or []
                self.zero = False
            if verb == STEP:
                self.stepping = request
            self.doubt = STEP if verb == STEP else PASS
            try:
                self._ask(request, values, read)
            except StageUnavailable:
                raise
            except (StageError, ProductTooLarge) as error:
                if isinstance(error, StageError) or not self.caller.sent:
                    self.doubt, self.stepping = "", None  # the stage did nothing
                    self.zero = self.zero or request.zero
                raise  # what only the answer was too large for was done
            self.doubt, self.stepping = "", None
            self.answered = request.call
            return request.call

    def zero_grad(self) -> None:
        """Gradients are zero before the next call."""
        with self._lock:
            self.zero = True
            if self.doubt == PASS:
                self.doubt = ""

    def make_step(self) -> int:
        """Have the optimizer make a step; how many were made."""
        with self._lock:
            self.numbered(STEP, {}, _nothing)
            return self.step

    # --- others -------------------------------------------------------------------------

    def ask(self, verb: str, values: Mapping[str, object], read: Reading) -> None:
        """A call that leaves nothing behind."""
        with self._lock:
            self._check_doubt()
            self._ask(self.request(verb), values, read)

    def checkpoint(self) -> int:
        """Have the run kept in the store; at which step."""
        with self._lock:
            self.ask(CHECKPOINT, {}, _nothing)
            return self.step

    def restore(self, step: int | None) -> int:
        """Go on from a checkpoint; at which step. Where there is none, the run stays as it was."""
        with self._lock:
            before = self._state()
            self._anew()
            self.call, self.doubt = 1, RESTORE  # else the next call would begin the run anew
            request = self.request(RESTORE)
            request.call, request.of = 1, step
            try:
                self._ask(request, {}, _nothing)
            except (NoCheckpoint, StageMismatch):
                self._go_back(before)  # refused before anything was done
                raise
            self.answered, self.doubt = 1, ""
            self.zero = True
            return self.step

    def end(self) -> None:
        """Have the run let go of."""
        with self._lock:
            request = self.request(END)
            request.instance = ""  # whoever serves the stage now
            self._ask(request, {}, _nothing)

    def describe(self) -> Description:
        """What the stage says of the run."""
        with self._lock:
            return self.caller.describe(self.request(DESCRIBE))

    def _check_doubt(self) -> None:
        """:raises OutOfStep: it is not known what became of the last call."""
        if self.doubt:
            again = {STEP: "step() again", RESTORE: "restore() again"}.get(
                self.doubt, "zero_grad() to begin the step anew, or restore()"
            )
            raise OutOfStep(
                f"the last {self.doubt} of run {self.run!r} had no answer of stage "
                f"{self.caller.stage!r}, and whether it was carried out is not known; call {again}",
                self.caller.stage,
                self.caller.host,
            )

    def _ask(self, request: Request, values: Mapping[str, object], read: Reading) -> None:
        caller = self.caller

        def note(reply: Reply, answer: dict[str, Value]) -> None:
            read(reply, answer)
            self.instance, self.host = reply.instance, reply.host
            if request.verb in (STEP, RESTORE):
                self.step = reply.step

        try:
            caller.ask(request, values, note)
        except StageLost as error:
            had = self.host or "nobody"
            raise StageLost(
                f"run {self.run!r} of stage {caller.stage!r}, which {had} had, is lost: "
                f"{error}; restore() continues from its last checkpoint",
                caller.stage,
                self.host,
            ) from error


def _nothing(reply: Reply, values: dict[str, Any]) -> None:
    del reply, values
