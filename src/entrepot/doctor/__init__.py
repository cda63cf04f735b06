"""What is wrong with shared memory, the broker, a medium or a store, and what mends it.

Each check does the real thing: it makes a segment and writes to it, orders a product that it
supplies itself, connects where suppliers would. What it finds is a list, worst last or not: whoever
asked decides what to do about it.
"""

from __future__ import annotations

import os
import resource
import secrets
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from entrepot.doctor.filesystem import NETWORK_FILESYSTEMS, filesystem_of
from entrepot.doctor.finding import Finding, Level, sized, timed
from entrepot.errors import EntrepotError
from entrepot.market.client import Client
from entrepot.market.dealer import check_connectable
from entrepot.market.supplier import Supplier
from entrepot.mediums import (
    FilesystemMedium,
    Medium,
    ShmMedium,
    TCPMedium,
    attach,
    checksum_of,
    shm,
)
from entrepot.mediums.base import padded
from entrepot.settings import ClientSettings, Settings, SupplierSettings

DOCKER_SHM_NBYTES = 64 << 20
"""What a container gets when nobody asks for more."""

LATE_S = 60.0
"""Age at which a waiting order is worth a word."""

FEW_DESCRIPTORS = 1024
"""A broker has one for each peer, and a supplier for each client."""

CANARIES = 5
"""Products that are ordered to see whether the market works."""


# --- shared memory ----------------------------------------------------------------------


def check_shm(client: ClientSettings, *, sweep: bool = False) -> Iterator[Finding]:
    """``/dev/shm``: its room, what dead owners left in it, and a segment made and written."""
    yield from _room("shm", shm.DIRECTORY, client, _SHM_LARGER)
    yield from _leftovers(sweep)
    yield from _trial("shm", lambda: ShmMedium.create(1 << 16, 2), SupplierSettings())


_SHM_LARGER = (
    "make /dev/shm larger: shm_size in docker compose, --shm-size for docker run, an emptyDir with "
    "medium: Memory and a larger sizeLimit in Kubernetes; or ask for fewer or smaller slots"
)


def _room(subject: str, directory: Path, client: ClientSettings, remedy: str) -> Iterator[Finding]:
    try:
        room = os.statvfs(directory)
    except OSError as fault:
        yield Finding(
            subject,
            Level.FAIL,
            f"{directory} cannot be used: {fault}",
            "mount it, or use a TCP medium (ENTREPOT_CLIENT__MEDIUM=tcp)",
        )
        return
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    wanted = padded(client.slot_nbytes) * client.slots
    said = f"{directory} has {sized(free)} of {sized(total)} free; a client takes {sized(wanted)}"
    if wanted > free:
        yield Finding(subject, Level.FAIL, said, remedy)
    elif wanted * 2 > free:
        # A client whose suppliers were lost makes new memory before it lets go of the old.
        yield Finding(subject, Level.WARN, f"{said}, and twice that after lost suppliers", remedy)
    elif subject == "shm" and total <= DOCKER_SHM_NBYTES:
        yield Finding(subject, Level.WARN, f"{said}; that is a container's default", remedy)
    else:
        yield Finding(subject, Level.OK, said)


def _leftovers(sweep: bool) -> Iterator[Finding]:
    left = shm.leftovers()
    nbytes = 0
    for path in left:
        try:
            nbytes += path.stat().st_size
        except OSError:  # its next owner was quicker
            continue
    if not left:
        yield Finding("shm", Level.OK, "no segment of a dead owner is left")
    elif sweep:
        removed = shm.sweep()
        yield Finding("shm", Level.OK, f"removed {len(removed)} segments of dead owners")
    else:
        yield Finding(
            "shm",
            Level.WARN,
            f"{len(left)} segments of dead owners are left, {sized(nbytes)}",
            "entrepot doctor shm --sweep; the next client does so as well",
        )


# --- mediums ----------------------------------------------------------------------------


def check_tcp(client: ClientSettings, supplier: SupplierSettings) -> Iterator[Finding]:
    """A TCP medium made as a client would, reached where a supplier would."""
    if client.tcp_host in ("127.0.0.1", "::1", "localhost"):
        yield Finding(
            "tcp",
            Level.OK,
            f"listens at {client.tcp_host}: suppliers of this machine alone can connect",
        )
    yield from _trial(
        "tcp",
        lambda: TCPMedium.create(
            1 << 16,
            2,
            host=client.tcp_host,
            port=client.tcp_port,
            advertise=client.tcp_advertise,
            timeout_s=client.tcp_timeout_s,
        ),
        supplier,
        "check that ENTREPOT_CLIENT__TCP_ADVERTISE names this host as suppliers see it, and that "
        "no firewall is between",
    )


def check_files(client: ClientSettings, supplier: SupplierSettings) -> Iterator[Finding]:
    """A medium of files in the directory that is set, if one is."""
    if client.file_root is None:
        yield Finding("file", Level.OK, "not in use: ENTREPOT_CLIENT__FILE_ROOT is not set")
        return
    root = Path(client.file_root)
    yield from _room("file", root, client, "free some room there, or ask for smaller slots")
    kind = filesystem_of(root)
    if kind.startswith(NETWORK_FILESYSTEMS) and not client.file_network:
        yield Finding(
            "file",
            Level.WARN,
            f"{root} is a network file system ({kind}), and is used as if it were local",
            "ENTREPOT_CLIENT__FILE_NETWORK=true",
        )

    def create() -> Medium:
        return FilesystemMedium.create(1 << 16, 2, root=root, network=client.file_network)

    if supplier.file_root is None:
        if root.is_dir():
            yield Finding(
                "file",
                Level.OK,
                "suppliers that are started with these settings take no files: "
                "ENTREPOT_SUPPLIER__FILE_ROOT is not set",
            )
        supplier = supplier.model_copy(update={"file_root": str(root)})
    yield from _trial(
        "file",
        create,
        supplier,
        f"ENTREPOT_SUPPLIER__FILE_ROOT is {supplier.file_root!r} here; it has to be the same "
        f"directory as the client's, {str(root)!r}, under whatever path",
    )


def _trial(
    subject: str, create: Callable[[], Medium], supplier: SupplierSettings, remedy: str = ""
) -> Iterator[Finding]:
    """A medium is made, attached to, written to and read, in this process."""
    payload = secrets.token_bytes(50_000)
    began = time.monotonic()
    try:
        with create() as medium:
            offset = medium.offset(1)
            address = medium.grant(offset, medium.slot_nbytes)
            with attach(address, settings=supplier) as other:
                said = other.write_checksummed(offset, payload, medium.slot_nbytes, lease=7)
            medium.written(offset)
            right = medium.read(offset, len(payload)) == payload and said == checksum_of(payload)
    except EntrepotError as fault:
        yield Finding(subject, Level.FAIL, str(fault), remedy)
        return
    took = time.monotonic() - began
    if right:
        yield Finding(
            subject,
            Level.OK,
            f"{sized(len(payload))} were written and read in {timed(took)}",
        )
    else:
        yield Finding(
            subject,
            Level.FAIL,
            "what was read is not what was written",
            "use another medium here, and report this with the file system's or kernel's version",
        )


# --- the broker -------------------------------------------------------------------------


def check_broker(frontend: str, backend: str, *, timeout_s: float) -> Iterator[Finding]:
    """Whether a broker answers, what it complains of, and whether an order comes through."""
    try:
        for endpoint in (frontend, backend):
            check_connectable(endpoint)
        medium = ShmMedium.create(1 << 12, 8)
        with Client(frontend, medium, name="doctor", timeout_s=timeout_s) as client:
            stats, answered_s = _ask(client)
            yield Finding(
                "broker",
                Level.OK,
                f"{frontend} answers in {timed(answered_s)}; "
                f"{stats['suppliers']['connected']} suppliers and "
                f"{stats['clients']['connected'] - 1} other clients are connected",
            )
            yield from _complaints(stats)
            yield from _canary(client, backend, timeout_s)
    except EntrepotError as fault:
        yield Finding("broker", Level.FAIL, str(fault), f"entrepot broker --frontend {frontend}")


def _ask(client: Client) -> tuple[dict[str, Any], float]:
    stats = client.stats()
    took = []
    for _ in range(CANARIES):
        began = time.monotonic()
        stats = client.stats()
        took.append(time.monotonic() - began)
    return stats, statistics.median(took)


def _complaints(stats: dict[str, Any]) -> Iterator[Finding]:
    """What the broker's own figures say is wrong."""
    orders, suppliers = stats["orders"], stats["suppliers"]
    if orders["unservable"]:
        named = [p["product"] for p in stats["products"] if p["unservable"] and p["product"]]
        shown = ", ".join(repr(name) for name in named[:3]) or "products"
        yield Finding(
            "broker",
            Level.FAIL,
            f"{orders['unservable']:,} orders wait that no supplier can serve: {shown}",
            "start a supplier whose pattern matches: entrepot supplier --serve MODULE:FUNCTION "
            "--product PATTERN",
        )
    elif not suppliers["connected"]:
        yield Finding(
            "broker",
            Level.WARN,
            "no supplier is connected",
            "entrepot supplier --serve MODULE:FUNCTION --product PATTERN",
        )
    if suppliers["suspect"]:
        names = [s["name"] for s in suppliers["list"] if s["state"] in ("suspect", "away")]
        yield Finding(
            "broker",
            Level.WARN,
            f"{suppliers['suspect']} suppliers are silent: {', '.join(names[:5])}",
            "look at these processes; one that holds Python's lock for long is slow, not dead",
        )
    if orders["oldest_age_s"] > LATE_S:
        yield Finding(
            "broker",
            Level.WARN,
            f"the oldest order has waited {timed(orders['oldest_age_s'])}, with "
            f"{orders['queued']:,} queued",
            "start more suppliers, or give them more credit",
        )
    if stats["dropped"].get("slow"):
        yield Finding(
            "broker",
            Level.WARN,
            f"{stats['dropped']['slow']} sessions were dropped since they did not read",
            "look at these clients; ENTREPOT_BROKER__MAX_OUTBOX is what is kept for each",
        )
    if stats["refused"]:
        words = ", ".join(f"{n:,} {code}" for code, n in sorted(stats["refused"].items()))
        yield Finding("broker", Level.OK, f"messages that it refused so far: {words}")


def _canary(client: Client, backend: str, timeout_s: float) -> Iterator[Finding]:
    """A product of the doctor's own, from its own supplier."""
    product = f"doctor-{secrets.token_hex(8)}"
    payload = secrets.token_bytes(1000)
    took = []
    right = True
    try:
        with Supplier(backend, {product: lambda _: payload}, name="doctor") as supplier:
            supplier.start()
            supplier.wait_registered(timeout_s)
            for _ in range(CANARIES):
                began = time.monotonic()
                with client.order(product).result(timeout_s=timeout_s) as made:
                    right = right and made.bytes() == payload
                took.append(time.monotonic() - began)
            supplier.stop()
    except EntrepotError as fault:
        yield Finding(
            "broker",
            Level.FAIL,
            f"an order did not come through: {fault}",
            f"check that suppliers connect to the backend of this broker; here it is {backend}",
        )
        return
    if right:
        yield Finding(
            "broker",
            Level.OK,
            f"orders come through by shared memory, in {timed(statistics.median(took))} each",
        )
    else:
        yield Finding("broker", Level.FAIL, "a product is not what its supplier made")


# --- the process ------------------------------------------------------------------------


def check_limits() -> Iterator[Finding]:
    """What this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FEW_DESCRIPTORS:
        yield Finding(
            "limits",
            Level.WARN,
            f"a process may have {soft} descriptors open (at most {hard})",
            f"ulimit -n {FEW_DESCRIPTORS if hard < 0 else min(hard, 65_536)}",
        )
    else:
        yield Finding("limits", Level.OK, f"a process may have {soft} descriptors open")


SUBJECTS = ("shm", "tcp", "file", "broker", "limits")


def examine(
    subjects: tuple[str, ...], settings: Settings, *, sweep: bool = False
) -> Generator[Finding, None, None]:
    """The findings about ``subjects``, as they are made."""
    client, supplier = settings.client, settings.supplier
    if "limits" in subjects:
        yield from check_limits()
    if "shm" in subjects:
        yield from check_shm(client, sweep=sweep)
    if "file" in subjects:
        yield from check_files(client, supplier)
    if "tcp" in subjects:
        yield from check_tcp(client, supplier)
    if "broker" in subjects:
        yield from check_broker(client.endpoint, supplier.endpoint, timeout_s=client.timeout_s)
