"""A loader of products: what ``torch.utils.data.DataLoader`` is for files, for what is ordered."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from entrepot.arguments import checked_int, checked_text
from entrepot.errors import Closed
from entrepot.market.protocol import ID_CHARS
from entrepot.training.loader_arguments import Given, checked_pattern
from entrepot.training.loader_feed import Packet
from entrepot.training.loader_plan import Plan
from entrepot.training.loader_progress import Bar
from entrepot.training.loader_source import Source, source_of
from entrepot.training.loader_state import Watermark, states_of

if TYPE_CHECKING:
    from typing import Self

    from entrepot.contract import Contract
    from entrepot.mediums.base import Medium
    from entrepot.training.loader_batches import Collate, Framework


class SoftDataLoader:
    """Decoded samples, or batches of them, of products that are ordered ahead.

    >>> loader = SoftDataLoader("tcp://broker:5555", contract, "layer_3", batch_size=32)
    >>> for batch in loader:
    ...     train(batch["x"], batch["y"])

    Two kinds. A *stream*, given ``product_id``: any next product of that name, without end unless
    there is a ``length``. *Indexed* products, given ``products`` and ``length``: epochs, in which
    each index comes once over all ranks.

    The client is made where it runs: here, with the first sample, or in each worker. So the loader
    may be made before a fork, be sent to a spawned process, and be one of the ranks of DDP.

    Not for several loops at once: a new ``iter`` ends the one before. ``set_model``, ``state_dict``
    and ``close`` may be called from any thread.

    :param endpoint: the broker's frontend.
    :param contract: what a product's bytes are. One product is one sample.
    :param product_id: the stream's.
    :param products: the product id of an index, ``lambda i: f"train/{i}"``; or a pattern with
        ``{index}`` in it, which also a spawned worker can be sent.
    :param length: how many indices there are. For a stream, samples after which an epoch of this
        rank ends; none by default.
    :param batch_size: samples that are stacked, or given to ``collate_fn``. None, the default,
        gives each as it is: a product may be a batch already.
    :param collate_fn: makes a batch of a list of samples. Without it tensors are stacked, and
        ragged ones listed.
    :param drop_last: no batch is smaller, and every rank has the same number of them: what is left
        over is left out of the epoch.
    :param shuffle: another order each epoch, which is a function of ``seed`` and epoch alone.
    :param ordered: give indexed products in their order. Otherwise as they arrive, so that a slow
        one holds up none.
    :param rank: which of ``world`` processes this is; by default what torch.distributed says, or
        the only one.
    :param medium: ``"shm"``, ``"file"`` or ``"tcp"``, as the settings say the rest; or what makes
        one of so many bytes and slots, such as ``partial(TCPMedium.create, host="0.0.0.0")``.
    :param prefetch: orders that each client keeps open. By default as many as 32 MiB hold, 4 to 64,
        and at least a batch.
    :param num_workers: processes that make batches; with 0 it is done here, while suppliers work.
    :param multiprocessing_context: as DataLoader's: ``"fork"``, ``"spawn"``, ...
    :param timeout_s: seconds to wait for a sample; None waits while the broker is there.
    :param pin_memory: give tensors in pinned memory, where there is an accelerator.
    :param progress: show a bar on a terminal; rank 0 only.
    :param framework: ``"torch"``, or ``"numpy"`` for arrays, for which torch is not needed.
    :param name: the client's, in the broker's statistics.
    :raises ConfigurationError: an argument cannot be one, or they do not go together.
    :raises MissingExtra: torch is not installed.
    """

    def __init__(
        self,
        endpoint: str,
        contract: Contract,
        product_id: str | None = None,
        *,
        products: Callable[[int], str] | str | None = None,
        length: int | None = None,
        batch_size: int | None = None,
        collate_fn: Collate | None = None,
        drop_last: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        ordered: bool = True,
        rank: int | None = None,
        world: int | None = None,
        medium: str | Callable[[int, int], Medium] | None = None,
        prefetch: int | None = None,
        num_workers: int = 0,
        multiprocessing_context: Any = None,
        timeout_s: float | None = 60.0,
        pin_memory: bool = False,
        progress: bool = False,
        framework: Framework = "torch",
        name: str = "",
    ) -> None:
        given = Given(
            endpoint=endpoint,
            contract=contract,
            product_id=product_id,
            products=products,
            length=length,
            batch_size=batch_size,
            collate_fn=collate_fn,
            drop_last=drop_last,
            shuffle=shuffle,
            seed=seed,
            ordered=ordered,
            rank=rank,
            world=world,
            medium=medium,
            prefetch=prefetch,
            num_workers=num_workers,
            context=multiprocessing_context,
            timeout_s=timeout_s,
            pin_memory=pin_memory,
            progress=progress,
            framework=framework,
            name=name,
        )
        self._begin(given.checked())

    def _begin(self, given: Given) -> None:
        self._given = given
        self._source_id = given.source
        self._lock = threading.RLock()  # guards all that follows
        self._consuming = threading.Lock()  # whoever waits for a sample
        self._pid = os.getpid()
        self._source: Source | None = None
        self._closed = False
        self._loop = 0
        self._fresh = True
        self._plan = Plan(0)
        self._early: dict[int, Packet] = {}
        self._turn = 0
        self._at = Watermark(given)
        self.stale = 0

    # --- going through it ---------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """One epoch: the next, or the rest of one that was loaded, or that an error interrupted.

        A stream goes on where it was.
        """
        with self._lock:
            self._check()
            if not self._fresh:
                self._at.to_epoch(self._at.epoch + 1)
            self._fresh = False
            self._loop += 1
            if self._source is None:
                self._source = source_of(self._given)
                _close_at_exit(self)
                self._replan()
            elif self._given.indexed:
                self._replan()
            return _Loop(self, self._loop)

    def __len__(self) -> int:
        """Batches of this rank in an epoch.

        :raises TypeError: a stream that has no ``length`` has no end.
        """
        with self._lock:
            size = self._given.batch_size or 1
            if self._given.indexed:
                samples = len(self._given.shard(self._at.epoch))
            elif self._given.length is not None:
                samples = self._given.length
            else:
                raise TypeError("a stream without a length has no len()")
            return samples // size if self._given.drop_last else -(-samples // size)

    @property
    def epoch(self) -> int:
        """Which epoch it is in, or begins with: 0, 1, 2, ..."""
        return self._at.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin with that one at the next ``iter``; or go on, where that is what it would do."""
        epoch = checked_int("epoch", epoch, 0)
        with self._lock:
            self._check()
            if not (self._fresh and epoch == self._at.epoch):
                self._loop += 1
                self._at.to_epoch(epoch)
                self._fresh = True

    def _next(self, loop: int) -> Packet | None:
        """What comes next in that loop; None at its end."""
        with self._consuming:
            while True:
                with self._lock:
                    self._check(loop)
                    if self._at.left() == 0:
                        return None
                    packet = self._early.pop(self._turn, None)
                    source = self._source
                    assert source is not None
                if packet is None:
                    packet = self._received(source)
                with self._lock:
                    self._check(loop)
                    if self._is_next(packet):
                        self._turn += 1
                        self._at.take(packet)
                        self._fresh = False
                        return packet

    def _received(self, source: Source) -> Packet:
        try:
            return source.get()
        except BaseException:  # also Ctrl-C: what was under way may be lost, and is ordered again
            with self._lock:
                if not self._closed:
                    self._interrupted()
                self._check()
            raise

    def _is_next(self, packet: Packet) -> bool:
        """Whether to serve it now: not of an earlier plan, nor before its turn."""
        if packet.number != self._plan.number:
            self.stale += 1
            return False
        if packet.fault is not None:
            self._interrupted()
            raise packet.fault
        if not packet.samples:
            return False
        if self._given.in_turn and packet.turn != self._turn:
            self._early[packet.turn] = packet
            return False
        return True

    def _interrupted(self) -> None:
        """Whoever goes on, in this loop or with another, gets what would have come now."""
        self._replan()
        self._fresh = True

    # --- switching ----------------------------------------------------------------------

    def set_model(self, product_id: str) -> None:
        """Serve products of that name from now on, and nothing that was ordered before.

        Once it returns no sample of before is served, by whichever thread, also none that workers
        had made already. For indexed products it is a pattern with ``{index}`` in it; what was
        served of the epoch stays served, and the rest has the new names. The same name again is a
        switch as well: for a teacher that has changed.
        """
        if self._given.indexed:
            product_id = checked_pattern("product_id", product_id)
        else:
            product_id = checked_text("product_id", product_id, ID_CHARS)
        with self._lock:
            self._check()
            self._source_id = product_id
            if self._source is not None:
                self._replan()
                self._stop_suppliers()

    def _stop_suppliers(self) -> None:
        """Cancel what is under way, unless somebody waits for a sample and does so presently."""
        assert self._source is not None
        if self._consuming.acquire(blocking=False):
            try:
                self._source.switched()
            finally:
                self._consuming.release()

    def _replan(self) -> None:
        """Begin anew where the consumer is; what is under way is stale."""
        assert self._source is not None
        self._plan = Plan(
            self._plan.number + 1,
            self._source_id,
            self._at.shard(),
            list(self._at.done),
        )
        self._early.clear()
        self._turn = 0
        self._source.write(self._plan)

    # --- resuming -----------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where this rank is: what was served, not what was made. JSON can say it."""
        with self._lock:
            return self._at.state()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from there at the next ``iter``, with any number of workers.

        :param state: of this rank; or of all ranks, to go on with another number of them. An epoch
            that was at its end has no sample left.
        :raises StateMismatch: it is not of such a loader.
        """
        with self._lock:
            self._check()
            self._at.load(states_of(state))
            self._fresh = True
            self._loop += 1

    @property
    def product_id(self) -> str:
        """What it serves: what ``set_model`` was given last. Nothing where a function says it."""
        return self._source_id

    @property
    def samples(self) -> int:
        """Samples served so far, over resumes of a stream too."""
        return self._at.total

    # --- the end ------------------------------------------------------------------------

    def close(self) -> None:
        """End its workers or its client; any number of times. Also at exit, and when dropped."""
        with self._lock:
            source, self._source = self._source, None
            self._closed = True
            if source is None:
                return
            _open.discard(self)
            if self._pid != os.getpid():
                _inherited.append(source)  # the parent's: nothing of it may be touched here
                return
            source.write(Plan(self._plan.number + 1, closed=True))
        with self._consuming:  # whoever waits for a sample sees the plan, and lets go
            source.close()

    def _check(self, loop: int | None = None) -> None:
        if self._closed:
            raise Closed("the loader was closed; make another one")
        if self._pid != os.getpid():
            self._leave_parent()
        if loop is not None and loop != self._loop:
            raise Closed("another loop over this loader has begun, or its epoch or state was set")

    def _leave_parent(self) -> None:
        """In a forked child: make what it needs of its own, with the next sample."""
        if self._source is not None:
            _inherited.append(self._source)
        self._source = None
        self._pid = os.getpid()
        self._consuming = threading.Lock()
        self._loop += 1

    def __getstate__(self) -> dict[str, Any]:
        """For a spawned process: the arguments, and where it is."""
        return {"given": self._given, "source": self._source_id, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(state["given"])
        self._source_id = state["source"]
        if self._given.rank is not None or not self._given.indexed:
            self.load_state_dict(state["state"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_source", None) is not None:
            self.close()

    def __repr__(self) -> str:
        what = self._source_id or "the products of a function"
        return f"<SoftDataLoader of {what} at {self._given.endpoint}>"


class _Loop(Iterator[Any]):
    """One ``for`` over a loader."""

    def __init__(self, loader: SoftDataLoader, number: int) -> None:
        self._loader = loader
        self._number = number
        self._bar = _bar(loader._given, loader._at)

    def __next__(self) -> Any:
        try:
            packet = self._loader._next(self._number)
        except BaseException:
            self._end()
            raise
        if packet is None:
            self._end()
            raise StopIteration
        if self._bar is not None:
            self._bar.advance(packet.samples)
        return packet.data

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __del__(self) -> None:
        self._end()


def _bar(given: Given, at: Watermark) -> Bar | None:
    """What shows how far it is, if that was asked for."""
    if not given.progress or given.ranks()[0] != 0:
        return None
    left = at.left()
    what = f"epoch {at.epoch}" if given.indexed else given.source
    return Bar(what[:40], None if left is None else at.count + left, at.count)


_open: weakref.WeakSet[SoftDataLoader] = weakref.WeakSet()
_inherited: list[Source] = []
"""What forked children have of their parents: kept, since to let it go would end the parent's."""


def _close_at_exit(loader: SoftDataLoader) -> None:
    """Before torch and multiprocessing do it: they kill workers, whose memory is left behind."""
    _open.add(loader)
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # after torch's, so that it comes before


def _close_all() -> None:
    for loader in list(_open):
        if loader._pid == os.getpid():
            loader.close()
