"""Where a loader's packets come from: a feed in this process, or workers."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol

from entrepot.errors import Closed
from entrepot.training.loader_feed import Feed, Packet, Setup
from entrepot.training.loader_plan import OwnPlans, Plan

if TYPE_CHECKING:
    from entrepot.training.loader_arguments import Given


class Source(Protocol):
    """What a loader asks for packets."""

    def write(self, plan: Plan) -> None:
        """This is the plan from now on."""

    def get(self) -> Packet:
        """The next packet; of whichever plan."""

    def switched(self) -> None:
        """Nothing that was ordered before is wanted. While nobody is in :meth:`get`."""

    def close(self) -> None:
        """Let go of all; any number of times."""


class Here:
    """A feed in this process."""

    def __init__(self, setup: Setup) -> None:
        self._plans = OwnPlans()
        self._setup = setup
        self._feed = Feed(setup, self._plans)
        self._packets: Generator[Packet, None, None] = self._feed.packets()

    def write(self, plan: Plan) -> None:
        self._plans.write(plan)

    def get(self) -> Packet:
        try:
            return next(self._packets)
        except StopIteration:
            raise Closed("the loader was closed while a sample was waited for") from None
        except BaseException:  # Ctrl-C ended it, and with it its client
            self._feed = Feed(self._setup, self._plans)
            self._packets = self._feed.packets()
            raise

    def switched(self) -> None:
        client = self._feed.client
        if client is not None:
            try:
                client.discard()  # so that suppliers stop at once, not with the next sample
            except Closed:
                pass

    def close(self) -> None:
        self._packets.close()


def source_of(given: Given) -> Source:
    """What those arguments ask for; started with its first packet."""
    setup = given.setup()
    if not given.num_workers:
        return Here(setup)
    from entrepot.training.loader_workers import Workers  # it loads torch

    return Workers(setup, given.num_workers, given.context, in_order=given.in_turn)
