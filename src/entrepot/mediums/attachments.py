"""The mediums that a supplier has attached, kept because attaching for each order is slow."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from entrepot.errors import ConfigurationError
from entrepot.mediums.base import Medium
from entrepot.mediums.registry import attach, class_of

if TYPE_CHECKING:
    from typing import Self


class Attachments:
    """At most ``capacity`` attached mediums, the least recently used leaving first.

    A segment stays in memory for as long as anybody has it mapped, so one whose owner is gone
    is let go: at the next :meth:`get` of another address, or at :meth:`drop_gone`, which an idle
    supplier calls now and then. May be used from several threads; one that still writes to a
    medium which leaves the cache keeps the memory until it is done. Orders with addresses of
    their own share what is attached for their place.

    :param capacity: how many mediums, at least 1; each may hold a whole ring of slots mapped.
    :param attach: gives the medium of an address.
    """

    def __init__(self, capacity: int, *, attach: Callable[[str], Medium] = attach) -> None:
        if capacity < 1:
            raise ConfigurationError(f"a supplier needs room for 1 medium, got {capacity}")
        self._capacity = capacity
        self._attach = attach
        self._mediums: OrderedDict[str, Medium] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, address: str) -> Medium:
        """The medium at ``address``, attached now or before.

        :raises BadAddress: it is not an address, or not one that is allowed.
        :raises MediumGone: its owner has unlinked it.
        """
        place = class_of(address).place_of(address)
        with self._lock:
            medium = self._mediums.get(place)
            if medium is not None and not medium.worth_keeping():
                del self._mediums[place]
                medium.close()
                medium = None
            if medium is None:
                self._drop_gone()
                medium = self._attach(address)
                self._mediums[place] = medium
                while len(self._mediums) > self._capacity:
                    _, oldest = self._mediums.popitem(last=False)
                    oldest.close()
                return medium
            self._mediums.move_to_end(place)
            return medium.at(address)

    def drop(self, address: str) -> None:
        """Let go of the medium at ``address``, if it is here."""
        with self._lock:
            medium = self._mediums.pop(class_of(address).place_of(address), None)
            if medium is not None:
                medium.close()

    def drop_gone(self) -> int:
        """Let go of every medium that is not worth keeping, and return how many those were."""
        with self._lock:
            return self._drop_gone()

    def _drop_gone(self) -> int:
        gone = [place for place, medium in self._mediums.items() if not medium.worth_keeping()]
        for place in gone:
            self._mediums.pop(place).close()
        return len(gone)

    def close(self) -> None:
        """Let go of all; any number of times."""
        with self._lock:
            while self._mediums:
                self._mediums.popitem()[1].close()

    def __len__(self) -> int:
        return len(self._mediums)

    def __contains__(self, address: str) -> bool:
        return class_of(address).place_of(address) in self._mediums

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
