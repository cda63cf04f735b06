"""Claims in a folder: of all that want a name, exactly one gets it.

A claim is written to a file of its own, synced, and then linked onto the name, which the file
system does only if nothing is there. Where it has no hard links, the name's own file is made with
``O_EXCL`` and written afterwards: a reader may then see it empty, and a writer may be killed in
between.

**Nothing is inferred from an error.** Over NFS a link can succeed and say that it failed, since a
lost answer is asked for again. So whatever is not a plain success is settled by reading the name
back: it is ours if it has our nonce.

**No name is blocked for ever.** A record that is torn, and older than a grace, was left by a crash.
Who finds it makes ``tmp/take-<hash of the key>-0`` with ``O_EXCL``, looks once more, and renames
that onto the name. While it is there, or once it was renamed, nobody else can come as far: either
the file is in the way, or the name has a whole record when it is looked at again. Should the taker
be killed, the next waits for the same grace and takes ``-1``. This is exact as long as nobody
sleeps longer than the grace between two calls.
"""

from __future__ import annotations

import hashlib
from enum import Enum

from entrepot.errors import ClaimUnsettled, StoreError
from entrepot.store import layout
from entrepot.store.calls import NO_LINKS, in_words
from entrepot.store.clock import StoreClock, uptime
from entrepot.store.files import Files
from entrepot.store.identity import new_nonce
from entrepot.store.primitives import stands_as
from entrepot.store.record import MAX_RECORD_NBYTES, Record

TRIES = 8
"""Times to start over when what was in the way is gone on the second look."""

TAKERS = 32
"""Takers that may be killed one after the other before a torn name is given up."""


class _Standing(Enum):
    MINE = "mine"
    TAKEN = "taken"
    TORN = "torn"
    """Left by a crash, for certain."""
    NOBODY = "nobody"


class Claims:
    """The claims of one folder.

    :param links: whether the file system has hard links; set to False on the first refusal.
    :param torn_grace_s: age, in seconds, from which a torn record counts as left by a crash.
    """

    def __init__(
        self, files: Files, clock: StoreClock, *, links: bool, torn_grace_s: float
    ) -> None:
        self.links = links
        self._files = files
        self._calls = files.calls
        self._clock = clock
        self._grace_s = torn_grace_s

    def create(self, key: str, record: Record, packed: bytes) -> bool:
        """See :meth:`entrepot.store.primitives.Primitives._create`."""
        try:
            return self._create(key, record, packed)
        except OSError as error:
            raise in_words(error, f"claim {record.name!r}", self._files.root) from error

    def _create(self, key: str, record: Record, packed: bytes) -> bool:
        path = self._files.path(key)
        for _ in range(TRIES):
            # Looked at first: who comes second, as most do, has nothing to write.
            found = self._files.peek(key, MAX_RECORD_NBYTES)
            if found is None:
                if (
                    self._by_link(key, record, packed)
                    if self.links
                    else self._alone(key, record, packed)
                ):
                    return True
                continue
            standing = self._judged(key, found, record.nonce)
            if standing is _Standing.TAKEN:
                return False
            if standing is _Standing.MINE:
                self._sync(path, record)
                return True
            if standing is _Standing.TORN:
                return self._take_over(key, record, packed)
        raise StoreError(
            f"cannot claim {record.name!r}: {path} appears and vanishes; is another program at "
            f"work in {self._files.root}?"
        )

    # --- the two primitives: True, or False where it has to be looked at again -------------

    def _by_link(self, key: str, record: Record, data: bytes) -> bool:
        path = self._files.path(key)
        temporary = self._files.temporary(data, record.nonce)
        try:
            try:
                self._calls.link(temporary, path)
            except FileExistsError:
                return False
            except FileNotFoundError:
                self._files.make_folders(key)
                return False
            except OSError as error:
                if not self._landed(key, record, error):
                    if error.errno not in NO_LINKS:
                        raise
                    self.links = False
                    return False
            self._sync(path, record)
            return True
        finally:
            self._files.remove(temporary)

    def _alone(self, key: str, record: Record, data: bytes) -> bool:
        path = self._files.path(key)
        began = uptime()
        try:
            self._files.create(path, data)
        except FileExistsError:
            return False
        except FileNotFoundError:
            self._files.make_folders(key)
            return False
        self._sync(path, record)
        # So slow that others may have thought us dead: then it is not ours if they did.
        return uptime() - began < self._grace_s / 2 or self._landed(key, record, None)

    # --- what stands under the name -----------------------------------------------------

    def _standing(self, key: str, nonce: str) -> _Standing:
        data = self._files.read(key, MAX_RECORD_NBYTES)
        return _Standing.NOBODY if data is None else self._judged(key, data, nonce)

    def _judged(self, key: str, data: bytes, nonce: str) -> _Standing:
        mine = stands_as(data, nonce)
        if mine is not None:
            return _Standing.MINE if mine else _Standing.TAKEN
        return _Standing.TORN if self._is_old(self._files.path(key)) else _Standing.TAKEN

    def _is_old(self, path: str) -> bool:
        try:
            written = self._calls.lstat(path).st_mtime
        except FileNotFoundError:
            return False
        if self._clock.now() - written <= self._grace_s:
            return False
        # Before anything is taken from anybody, by the very clock that stamped it.
        self._clock.anchor(self._files.stamp(new_nonce()))
        return self._clock.now() - written > self._grace_s

    def _landed(self, key: str, record: Record, error: OSError | None) -> bool:
        """Whether the name is ours, although a call said that it failed.

        :raises ClaimUnsettled: that cannot be read.
        """
        try:
            return self._standing(key, record.nonce) is _Standing.MINE
        except OSError as unknown:
            raise ClaimUnsettled(
                record.name, record.nonce, f"{error}, and then {unknown}"
            ) from unknown

    def _sync(self, path: str, record: Record) -> None:
        """The name is ours; now it has to stay so."""
        try:
            self._files.sync_folder(path)
        except OSError as error:
            raise ClaimUnsettled(
                record.name, record.nonce, f"it is ours, but may not outlive a power cut: {error}"
            ) from error

    # --- what a crash left --------------------------------------------------------------

    def _take_over(self, key: str, record: Record, data: bytes) -> bool:
        files = self._files
        for taker in range(TAKERS):
            taking = files.path(f"{layout.TMP}/{_taking(key, taker)}")
            try:
                files.create(taking, data)
            except FileExistsError:
                if not self._is_old(taking):
                    return False  # somebody is at it
                continue
            standing = self._standing(key, record.nonce)
            if standing is not _Standing.TORN:
                files.remove(taking)
                return standing is _Standing.MINE
            self._calls.rename(taking, files.path(key))
            self._sync(files.path(key), record)
            return True
        raise StoreError(
            f"cannot claim {record.name!r}: {files.path(key)} is torn, and {TAKERS} that would "
            f"have mended it were killed; remove it"
        )


def _taking(key: str, taker: int) -> str:
    return f"take-{hashlib.sha256(key.encode()).hexdigest()[:40]}-{taker}"
