"""Mediums carry the bytes of products between two processes; the broker never sees them.

``ShmMedium`` is for one machine, ``FilesystemMedium`` for a directory that is shared, and
``TCPMedium`` for machines that share nothing. :func:`create` makes the one that a
client's settings ask for, :func:`attach` finds the class by the address. A medium of your own takes
part after :func:`register`, and ``entrepot.testing.MediumContract`` proves it.
"""

from entrepot.mediums.attachments import Attachments
from entrepot.mediums.base import Medium
from entrepot.mediums.buffers import as_bytes, checksum_of
from entrepot.mediums.chosen import create
from entrepot.mediums.filesystem import FilesystemMedium
from entrepot.mediums.receipt import Post, Receipt
from entrepot.mediums.registry import attach, register, schemes
from entrepot.mediums.shm import ShmMedium
from entrepot.mediums.tcp import TCPMedium

register(ShmMedium.scheme, ShmMedium)
register(FilesystemMedium.scheme, FilesystemMedium)
register(TCPMedium.scheme, TCPMedium)

__all__ = [
    "Attachments",
    "FilesystemMedium",
    "Medium",
    "Post",
    "Receipt",
    "ShmMedium",
    "TCPMedium",
    "as_bytes",
    "attach",
    "checksum_of",
    "create",
    "register",
    "schemes",
]
