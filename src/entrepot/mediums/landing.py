"""An owner's memory for slots whose bytes are elsewhere: which part of it a slot has, and when."""

from __future__ import annotations

from entrepot.mediums.memory import map_memory


class Landing:
    """As many places as there are slots; a slot has one from when it is read until its release.

    The place that was given back last is the next to be taken: it is still in the processor's
    cache, and memory that is not needed is never touched. No locks: a release may come from the
    garbage collector, in whatever thread. A slot is used by one thread at a time.

    :param stride: bytes from one slot to the next.
    :raises MediumError: there is no address space for it.
    """

    def __init__(self, slots: int, stride: int, address: str) -> None:
        self._stride = stride
        self._memory = map_memory(-1, slots * stride, address)
        self._free = list(range(slots - 1, -1, -1))
        self._places: dict[int, int] = {}

    def at(self, offset: int, nbytes: int) -> memoryview | None:
        """The memory of those bytes of a slot; None if it has no place, or they are of several."""
        slot, within = divmod(offset, self._stride)
        place = self._places.get(slot)
        if place is None or within + nbytes > self._stride:
            return None
        start = place * self._stride + within
        return self._memory[start : start + nbytes]

    def take(self, offset: int, nbytes: int) -> memoryview | None:
        """:meth:`at`, with a place for a slot that has none."""
        slot, within = divmod(offset, self._stride)
        if not nbytes or within + nbytes > self._stride:
            return None
        if slot not in self._places:
            self._places[slot] = self._free.pop()
        return self.at(offset, nbytes)

    def give(self, slot: int) -> None:
        """Nobody looks at ``slot`` any more; any number of times."""
        place = self._places.pop(slot, None)
        if place is not None:
            self._free.append(place)
