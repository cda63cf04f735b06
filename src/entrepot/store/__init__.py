"""Blobs and records in a folder or in a bucket, and the one method that hands out work: claim."""

from entrepot.store.base import Changes, Skipped, Store, Swept
from entrepot.store.cursor import Cursor
from entrepot.store.record import EMPTY, Digest, Fault, Record, digest_of
from entrepot.store.segment import Segment

__all__ = [
    "EMPTY",
    "Changes",
    "Cursor",
    "Digest",
    "Fault",
    "Record",
    "Segment",
    "Skipped",
    "Store",
    "Swept",
    "digest_of",
]
