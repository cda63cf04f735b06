"""Feeds in workers of a ``torch.utils.data.DataLoader``, each with a client of its own."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from entrepot.errors import ConfigurationError, LoaderError, OrderTimeout, WorkerDied
from entrepot.errors.root import sentence_of
from entrepot.mediums import shm
from entrepot.training.loader_batches import received
from entrepot.training.loader_feed import Feed, Packet, Setup
from entrepot.training.loader_plan import Plan, SharedPlans

GRACE_S = 30.0
"""How much longer than for a sample is waited for a worker: it has to be started, and to say that
no sample came."""

LOOK_S = 1.0
"""Longest time without a look at whether all workers live."""

Sent = tuple[Packet, "Fault | None"]
Fault = tuple[type[Exception], tuple[Any, ...], dict[str, Any]]


class Feeds(IterableDataset[Sent]):
    """What each worker goes through."""

    def __init__(self, setup: Setup, plans: SharedPlans) -> None:
        self._setup = setup
        self._plans = plans

    def __iter__(self) -> Iterator[Sent]:
        info = get_worker_info()
        assert info is not None
        while True:
            feed = Feed(self._setup, self._plans, info.id, info.num_workers)
            try:
                for packet in feed.packets():
                    if packet.fault is None:
                        yield packet, None
                    else:
                        yield replace(packet, fault=None), _told(packet.fault, info.id)
                self.end_if_orphaned()
                return
            except Exception as error:  # there is no room for its memory, or no such medium
                fault = _told(error, info.id)
            yield Packet(self._plans.number()), fault

    def end_if_orphaned(self, _worker: int = 0) -> None:
        """torch's own look at this finds nothing when the parent had ended before it was made."""
        if self._plans.orphaned():
            os._exit(0)  # there is nobody to send anything to


class Workers:
    """The workers, and what comes from them.

    :raises ConfigurationError: what they are to be given cannot be sent to them.
    """

    def __init__(self, setup: Setup, workers: int, context: Any, in_order: bool) -> None:
        self._setup = setup
        self.plans = SharedPlans()
        form = replace(setup.form, sent=True, pinned=False)
        options: dict[str, Any] = {}
        if not in_order and "in_order" in inspect.signature(DataLoader.__init__).parameters:
            options["in_order"] = False  # whatever comes first is as good
        feeds = Feeds(replace(setup, form=form), self.plans)
        self._loader: DataLoader[Sent] = DataLoader(
            feeds,
            worker_init_fn=feeds.end_if_orphaned,
            batch_size=None,
            num_workers=workers,
            collate_fn=_as_it_is,
            multiprocessing_context=context,
            pin_memory=setup.form.pinned,
            timeout=LOOK_S,
            generator=torch.Generator(),  # else every loader would move the global one
            **options,
        )
        self._packets: Any = None
        self._look_at = 0.0
        self._came = False

    def get(self) -> Packet:
        """The next packet.

        :raises WorkerDied: one was killed.
        :raises OrderTimeout: none says anything.
        """
        if self._packets is None:
            self._packets = self._started()
        packet, fault = self._sent()
        self._came = True
        if fault is not None:
            packet.fault = _raised(fault)
        elif packet.samples:
            packet.data = received(self._setup.form, packet.data)
        return packet

    def _sent(self) -> Sent:
        since = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + LOOK_S
                self._check()
            try:
                sent: Sent = next(self._packets)
                return sent
            except StopIteration:
                raise WorkerDied("the workers have ended; make another loader") from None
            except RuntimeError as error:
                if "timed out" not in str(error):
                    self._check()
                    raise
            limit_s = self._setup.timeout_s
            if limit_s is not None and now - since > limit_s + GRACE_S:
                raise OrderTimeout(
                    f"no worker said anything for {now - since:.3g} s; are they stopped, or is a "
                    f"collate_fn that slow?"
                )

    def _check(self) -> None:
        """Refuse to go on with fewer than all."""
        gone = [worker for worker in self._packets._workers if not worker.is_alive()]
        if gone:
            shm.sweep()  # its memory: who is killed removes nothing
            raise WorkerDied(
                f"worker {gone[0].pid} of the loader ended with {gone[0].exitcode}; "
                f"{self._hint(gone[0])}make another loader, and load_state_dict() what this one has"
            )

    def _hint(self, worker: Any) -> str:
        """What a script lacks, as a rule, whose workers end by themselves before they begin."""
        method = worker._start_method or multiprocessing.get_start_method()
        if self._came or worker.exitcode != 1 or method == "fork":
            return ""
        return (
            "it says why on standard error; a script whose workers are spawned does what it does "
            "below `if __name__ == '__main__':`, or each worker would do it too; "
        )

    def _started(self) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # it is raised as well
                return iter(self._loader)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ConfigurationError(
                f"what this loader was given cannot be sent to workers that are spawned ({error}); "
                f"give products as text, 'train/{{index}}', and functions of a module's top level, "
                f"or fork: multiprocessing_context='fork'"
            ) from error

    def write(self, plan: Plan) -> None:
        self.plans.write(plan)

    def switched(self) -> None:
        """Each worker looks at the plan by itself."""

    def close(self) -> None:
        """End the workers and wait for them; any number of times."""
        packets, self._packets = self._packets, None
        if packets is not None:
            packets._shutdown_workers()
            if any(worker.exitcode != 0 for worker in packets._workers):
                shm.sweep()  # killed, by somebody else or by torch, which waits for none for long
        self.plans.close()


def _as_it_is(sent: Any) -> Any:
    return sent


# --- faults -----------------------------------------------------------------------------


def _told(error: Exception, worker: int) -> Fault:
    """An error as it can be sent: pickle would call its class with the sentence alone."""
    fields = {name: value for name, value in vars(error).items() if name != "__notes__"}
    where = "".join(traceback.format_exception(error))
    fields["__notes__"] = [f"in worker {worker} of the loader:\n{where}"]
    fault = (type(error), error.args, fields)
    try:
        pickle.dumps(fault)
    except Exception:  # of a class, or with a value, that cannot be sent
        said = f"{type(error).__name__}: {sentence_of(error)}"
        return LoaderError, (said,), {"__notes__": fields["__notes__"]}
    return fault


def _raised(fault: Fault) -> Exception:
    kind, arguments, fields = fault
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(fields)
    return error
