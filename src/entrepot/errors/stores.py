"""What goes wrong between a process and a folder or a bucket."""

from __future__ import annotations

from entrepot.errors.root import EntrepotError


class StoreError(EntrepotError):
    """The root of what goes wrong between this process and a folder or a bucket."""

    code = "store"


class BadRecord(StoreError, ValueError):
    """A name, digest, meta or nonce is not one that a record can have; nothing was written."""

    code = "bad_record"


class MissingBlob(StoreError, LookupError):
    """No blob of this digest is in the store."""

    code = "missing_blob"


class CorruptBlob(StoreError):
    """What is stored under a digest does not have that digest."""

    code = "corrupt_blob"


class NoRecord(StoreError, LookupError):
    """No record of this name is in the store, or none that can be read."""

    code = "no_record"


class StoreUnreachable(StoreError, ConnectionError):
    """The folder is not there, or the endpoint does not answer."""

    code = "store_unreachable"


class NoBucket(StoreUnreachable):
    """The endpoint answers, and has no such bucket; ``entrepot store init`` makes one."""

    code = "no_bucket"


class StoreDenied(StoreError, PermissionError):
    """The store is there, but this user, or these credentials, may not do this."""

    code = "store_denied"


class StoreReadOnly(StoreError, PermissionError):
    """The store was opened for reading, or lies on a file system that is mounted so."""

    code = "store_read_only"


class StoreFull(StoreError, OSError):
    """There is no room for what was to be written."""

    code = "store_full"


class StoreFormat(StoreError):
    """The store was made by a later release, or what is there is no store."""

    code = "store_format"


class ConditionalPutIgnored(StoreError):
    """The endpoint writes although it was told to write only if nothing is there."""

    code = "conditional_put_ignored"


class ClaimUnsettled(StoreUnreachable):
    """A claim failed in the middle, and what stands under the name could not be read back.

    ``nonce`` is the claim's: the name is ours if its record has it.
    """

    code = "claim_unsettled"

    def __init__(self, name: str, nonce: str, why: str) -> None:
        self.name = name
        self.nonce = nonce
        super().__init__(
            f"whether {name!r} was claimed is unknown: {why}; claim it again with "
            f"nonce={nonce!r}, or read it once the store answers: it is yours if its record has it"
        )
