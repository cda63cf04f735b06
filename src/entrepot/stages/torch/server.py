"""Serving a stage that learns: runs by name and configuration, each built fresh, not too many."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from entrepot.arguments import checked_function, checked_int, checked_seconds
from entrepot.errors import (
    BadStageMessage,
    ConfigurationError,
    NoCheckpoint,
    OutOfStep,
    StageFull,
    StageLost,
)
from entrepot.logs import why_of
from entrepot.settings import SupplierSettings
from entrepot.stages.checkpoints import Checkpoints, Generation
from entrepot.stages.protocol import (
    BACKWARD,
    CHECKPOINT,
    DESCRIBE,
    END,
    FORWARD,
    RESTORE,
    STEP,
    VERBS,
    Reply,
    Request,
)
from entrepot.stages.serving import Answer, Server
from entrepot.stages.torch.run import Run, Torn
from entrepot.stages.torch.state import Checkpoint, pack_state, unpack_state
from entrepot.stages.values import Value
from entrepot.store import Store

if TYPE_CHECKING:
    from entrepot.contract import Contract

REMEMBERED = 4096
"""Runs that are no more, of which it is known why; and runs that are in the store meanwhile."""

logger = logging.getLogger(__name__)


@dataclass
class Parked:
    """A run that is in the store and not in memory, so that others have room."""

    request: Request
    generation: Generation


class TorchStageServer(Server):
    """Serves a stage whose weights live and are trained here. There is one of a stage at a time.

    >>> def build(config):
    ...     embedding = torch.nn.Embedding(4096, config["dim"])
    ...     return embedding, torch.optim.Adam(embedding.parameters(), config["lr"])
    >>> TorchStageServer("tcp://broker:5556", "embed", build, store="/mnt/shared/studies").run()

    A run is a name and a configuration. It is built when it is first called, and again, from
    nothing, for each :class:`TorchStage` that is made of that name and configuration.

    :param endpoint: the broker's backend, ``tcp://host:port`` or ``ipc:///path``.
    :param stage: its name: letters, digits, ``_``, ``-`` and ``.``.
    :param build: ``build(config)`` gives a module and its optimizer; or a module alone, which is
        not trained. It may seed torch; without that, the run's name and configuration do.
    :param store: a store, or its path or URL, for checkpoints. Without one there are none.
    :param checkpoint_every: steps after which a run is kept in the store by itself.
    :param max_runs: runs in memory. The one that was idle longest makes room for another: it is
        kept in the store and brought back when it is called; or, without a store, it is lost.
    :param max_forwards: forwards of a run whose gradients may come. The oldest is let go of.
    :param idle_s: seconds after which a run makes room even in the middle of a step.
    :param device: where modules are moved to; where the build puts them, by default.
    :param version: what callers may ask for.
    :param name: shown in statistics, logs and errors; host and process id by default.
    :param settings: timeouts, limits and mediums that are taken; by default the environment's.
    :param contract: what callers have to agree on. One whose client has another contract is refused
        and told the difference; one without is not.
    :ivar instance: another for each server.
    """

    def __init__(
        self,
        endpoint: str,
        stage: str,
        build: Callable[[dict[str, Any]], Any],
        *,
        store: Store | str | None = None,
        checkpoint_every: int | None = None,
        max_runs: int = 8,
        max_forwards: int = 64,
        idle_s: float = 600.0,
        device: str | None = None,
        version: str = "",
        name: str = "",
        settings: SupplierSettings | None = None,
        contract: Contract | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._build = checked_function(f"the build of stage {stage!r}", build)
        self._max_runs = checked_int("max_runs", max_runs, 1)
        self._max_forwards = checked_int("max_forwards", max_forwards, 1)
        self._idle_s = checked_seconds("idle_s", idle_s)
        self._device = device
        self._clock = clock
        self._every = 0
        if checkpoint_every is not None:
            self._every = checked_int("checkpoint_every", checkpoint_every, 1)
            if store is None:
                raise ConfigurationError("checkpoint_every needs a store to keep checkpoints in")
        super().__init__(
            endpoint,
            stage,
            VERBS,
            self._answer_to,
            version=version,
            name=name,
            exclusive=True,
            settings=settings,
            contract=contract,
        )
        self.instance = os.urandom(8).hex()
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._parked: OrderedDict[str, Parked] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._checkpoints: Checkpoints | None = None
        if store is not None:
            store = store if isinstance(store, Store) else Store.open(store)
            self._checkpoints = Checkpoints(store, stage)
        self._calls: dict[str, Callable[[Run, Request, dict[str, Value]], Answer]] = {
            FORWARD: self._forward,
            BACKWARD: lambda run, request, values: run.once(
                request, lambda: run.backward(request, values)
            ),
            STEP: self._step,
            CHECKPOINT: self._checkpoint,
            RESTORE: self._restore,
            DESCRIBE: self._describe,
            END: self._end,
        }

    @property
    def runs(self) -> int:
        """How many runs are in memory."""
        return len(self._runs)

    def run(
        self, stop_event: threading.Event | None = None, *, timeout_s: float | None = None
    ) -> None:
        """As :meth:`Server.run`; at an end in order, each run is kept in the store."""
        super().run(stop_event, timeout_s=timeout_s)
        if self._checkpoints is not None:
            for run in self._runs.values():
                self._saved(run)
        self._runs.clear()

    # --- one call -----------------------------------------------------------------------

    def _answer_to(self, request: Request, values: dict[str, Value]) -> Answer:
        if request.verb == DESCRIBE and not request.run:
            return Reply(instance=self.instance, info={"version": self.version}), {}
        if request.verb == END and request.begin not in self._runs:
            self._parked.pop(request.begin, None)
            return Reply(instance=self.instance), {}
        run = self._run_of(request)
        run.used_at = self._clock()
        self._runs.move_to_end(run.begin)
        try:
            reply, made = self._calls[request.verb](run, request, values)
        except Torn as error:
            self._drop(run, str(error))
            raise
        reply.instance = self.instance
        return reply, made

    def _forward(self, run: Run, request: Request, values: dict[str, Value]) -> Answer:
        if request.call:
            return run.once(request, lambda: run.forward(request, values))
        if request.train or request.keep:
            raise BadStageMessage("a forward that leaves something behind came without a number")
        run.check_step(request)
        return run.forward(request, values)

    def _step(self, run: Run, request: Request, values: dict[str, Value]) -> Answer:
        del values
        before = run.step
        reply, made = run.once(request, run.apply_step)
        if self._every and run.step != before and run.step % self._every == 0:
            self._saved(run)
        return reply, made

    def _checkpoint(self, run: Run, request: Request, values: dict[str, Value]) -> Answer:
        del values
        run.check_step(request)
        self._save(run)
        return Reply(step=run.step), {}

    def _restore(self, run: Run, request: Request, values: dict[str, Value]) -> Answer:
        """The run is there by now; its first call is this one."""
        del values
        if run.call == 0:
            run.remember(request.call, RESTORE, (Reply(step=run.step), {}))
        request.step = run.step
        return run.once(request, lambda: (Reply(step=run.step), {}))

    def _describe(self, run: Run, request: Request, values: dict[str, Value]) -> Answer:
        del request, values
        info: dict[str, str | int] = {
            "version": self.version,
            "parameters": run.parameters_digest(),
        }
        return Reply(step=run.step, info=info), {}

    def _end(self, run: Run, request: Request, values: dict[str, Value]) -> Answer:
        del request, values
        self._drop(run, "its user has ended it")
        return Reply(step=run.step), {}

    # --- runs ---------------------------------------------------------------------------

    def _run_of(self, request: Request) -> Run:
        """The run that is called; built, restored, or brought back."""
        begin = request.begin
        run = self._runs.get(begin)
        if request.instance not in ("", self.instance):
            raise StageLost(f"the server that answers now, {self.name}, is another")
        if run is not None:
            if (run.name, run.config) != (request.run, request.config):
                raise BadStageMessage(
                    f"run {run.name!r} is called as {request.run!r}, or with another configuration"
                )
            return run
        if not (begin and request.run):
            raise BadStageMessage(f"a {request.verb} came without the name of a run")
        if begin in self._ended:
            raise StageLost(self._ended[begin])
        if begin in self._parked:
            return self._brought_back(begin)
        if request.instance:
            raise StageLost(f"{self.name} has no such run any more")
        if request.verb == RESTORE:
            return self._restored(request)
        if request.step:
            raise OutOfStep(f"a run begins at step 0, and is called at step {request.step}")
        return self._begun(request)

    def _begun(self, request: Request) -> Run:
        self._supersede(request)
        run = self._built(request)
        if self._checkpoints is not None:
            run.generation = self._checkpoints.begin(run.name, run.config)
        self._runs[run.begin] = run
        return run

    def _restored(self, request: Request) -> Run:
        if self._checkpoints is None:
            raise NoCheckpoint(
                f"the server of stage {self.stage!r}, {self.name}, has no store; give it one"
            )
        step, data = self._checkpoints.newest(request.run, request.config, request.of)
        kept = self._checkpoints.kept(request.run, request.config)
        self._supersede(request)
        run = self._built(request)
        _, state = unpack_state(data)
        run.load({**state, "gradients": {}, "torn": ""}, step, 0)
        run.answer = None
        kept = [each for each in kept if each[0] <= step]
        run.generation = self._checkpoints.begin(run.name, run.config, kept)
        self._runs[run.begin] = run
        return run

    def _brought_back(self, begin: str) -> Run:
        parked = self._parked[begin]
        assert self._checkpoints is not None
        run = self._built(parked.request)
        header, state = unpack_state(self._checkpoints.load(parked.generation))
        run.load(state, header.step, header.call)
        run.generation = parked.generation
        del self._parked[begin]
        self._runs[begin] = run
        return run

    def _built(self, request: Request) -> Run:
        self._make_room()
        try:
            config = json.loads(request.config or "{}")
        except ValueError as error:
            raise BadStageMessage(f"the configuration cannot be read: {error}") from None
        return Run(
            self.stage,
            request,
            self._build,
            config,
            max_forwards=self._max_forwards,
            device=self._device,
        )

    def _supersede(self, request: Request) -> None:
        """There is one of that name and configuration, and it is the newest."""
        key = (request.run, request.config)
        why = f"run {request.run!r} of stage {self.stage!r} was begun anew by another"
        for run in list(self._runs.values()):
            if (run.name, run.config) == key:
                self._drop(run, why)
        for begin, parked in list(self._parked.items()):
            if (parked.request.run, parked.request.config) == key:
                del self._parked[begin]
                self._note(begin, why)

    def _drop(self, run: Run, why: str) -> None:
        self._runs.pop(run.begin, None)
        self._note(run.begin, why)

    def _note(self, begin: str, why: str) -> None:
        self._ended[begin] = why
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    def _make_room(self) -> None:
        """Let go of the run that was idle longest, if there are as many as there may be."""
        while len(self._runs) >= self._max_runs:
            now = self._clock()
            idle = [
                run
                for run in self._runs.values()
                if not run.held or now - run.used_at >= self._idle_s
            ]
            if not idle:
                raise StageFull(
                    f"stage {self.stage!r} at {self.name} has {len(self._runs)} runs, and all of "
                    f"them are in the middle of a step; wait, or serve it with a larger max_runs"
                )
            run = min(idle, key=lambda run: run.used_at)
            if self._checkpoints is None:
                self._drop(
                    run,
                    f"{self.name} has room for {self._max_runs} runs and no store: this one was "
                    f"idle longest",
                )
                continue
            self._save(run, whole=True)
            assert run.generation is not None
            request = Request(
                stage=self.stage, verb="", run=run.name, config=run.config, begin=run.begin
            )
            self._parked[run.begin] = Parked(request, run.generation)
            del self._runs[run.begin]
            while len(self._parked) > REMEMBERED:
                self._note(self._parked.popitem(last=False)[0], "it was idle too long")

    # --- checkpoints --------------------------------------------------------------------

    def _save(self, run: Run, *, whole: bool = False) -> None:
        if self._checkpoints is None or run.generation is None:
            raise NoCheckpoint(
                f"the server of stage {self.stage!r}, {self.name}, has no store to keep a "
                f"checkpoint in; give it one"
            )
        header = Checkpoint(
            stage=self.stage, run=run.name, config=run.config, step=run.step, call=run.call
        )
        self._checkpoints.save(run.generation, run.step, pack_state(header, run.state(whole=whole)))

    def _saved(self, run: Run) -> None:
        """Kept, if the store allows; a step that was applied is not failed for it."""
        try:
            self._save(run)
        except Exception as error:
            logger.warning(
                "a checkpoint could not be kept: %s",
                why_of(error),
                extra={"stage": self.stage, "run": run.name, "step": run.step, "why": error},
            )
