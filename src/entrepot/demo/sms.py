"""The SMS Spam Collection: 5,574 real messages, each ``ham`` or ``spam``.

Almeida, T. A. and Gómez Hidalgo, J. M. (2011), UCI Machine Learning Repository,
doi:10.24432/C5CC84, CC BY 4.0. The package does not carry the messages; :func:`locate` finds them.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from entrepot.errors import DataUnavailable

VARIABLE = "ENTREPOT_SMS_DATA"
"""Names the file, where it is set."""

URL = "https://archive.ics.uci.edu/static/public/228/sms+spam+collection.zip"
MEMBER = "SMSSpamCollection"
SHA256 = "7d039a24a6083ed9ef0f806ebad56bbb976e3aeb8de05669173bfdc4996c239d"
NBYTES = 477_907
MESSAGES = 5_574

MAX_ARCHIVE_NBYTES = 8 << 20
"""More than this is not the archive that we want: the download stops."""

SILENCE_S = 20.0
"""How long the server may say nothing, and"""

DOWNLOAD_S = 120.0
"""how long the whole download may take, in seconds."""

Progress = Callable[[int, int], None]
"""Called with the bytes that came and the bytes that are expected (0 when unknown)."""


class Message(NamedTuple):
    """One line of the collection."""

    spam: bool
    text: str


def load(path: Path | None = None, progress: Progress | None = None) -> list[Message]:
    """The messages in the collection's order, from ``path`` or from where :func:`locate` says."""
    file = locate(progress) if path is None else path
    return parse(_verified(file, _advice(file)))


def parse(data: bytes) -> list[Message]:
    """The messages in the bytes of the collection. Only a line feed ends a message."""
    messages = []
    for number, line in enumerate(data.decode().removesuffix("\n").split("\n"), start=1):
        label, tab, text = line.partition("\t")
        if label not in ("ham", "spam") or not tab:
            raise DataUnavailable(
                f"line {number} is not `ham` or `spam`, a tab and a text: {line[:60]!r}"
            )
        messages.append(Message(label == "spam", text))
    return messages


def locate(progress: Progress | None = None) -> Path:
    """The verified file: what ``ENTREPOT_SMS_DATA`` names, else a copy near by, else a download.

    Raises:
        DataUnavailable: the file is missing or is not the collection, or the download failed.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named).expanduser().resolve()
        _verified(path, _advice(path))
        return path
    for path in _near():
        if path.is_file():
            _verified(path, _advice(path))
            return path
    cached = cache_folder() / MEMBER
    try:
        _verified(cached, "")
    except DataUnavailable:
        _download(cached, progress)
    return cached


def cache_folder() -> Path:
    """Where a download is kept: ``$XDG_CACHE_HOME/entrepot``, or ``~/.cache/entrepot``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path is to be ignored.
    base = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return base / "entrepot"


def _near() -> list[Path]:
    """Where a copy beside the project or the working folder would be."""
    beside = Path("shared") / "data" / "sms_spam" / MEMBER
    project = Path(__file__).resolve().parents[3]
    return [folder.parent / beside for folder in (Path.cwd(), project)]


def _advice(path: Path) -> str:
    return (
        f"; remove {path} or set {VARIABLE} to a good copy (the archive is at {URL})"
        if path.exists()
        else f"; set {VARIABLE} to a copy of the file {MEMBER} out of {URL}"
    )


def _verified(path: Path, advice: str) -> bytes:
    """The bytes of ``path``, which are the collection."""
    try:
        with path.open("rb") as file:
            data = file.read(NBYTES + 1)  # a wrong file may be of any size
    except OSError as fault:
        raise DataUnavailable(f"cannot read {path}: {fault.strerror or fault}{advice}") from fault
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise DataUnavailable(
            f"{path} is not the SMS Spam Collection: its sha256 is {found}, not {SHA256}{advice}"
        )
    return data


def _download(target: Path, progress: Progress | None) -> None:
    """Fetch the archive, take the collection out of it, verify it, and put it at ``target``.

    ``target`` appears whole or not at all, whoever else does the same at the same time.
    """
    try:
        archive = _fetch(progress)
        with zipfile.ZipFile(io.BytesIO(archive)) as opened, opened.open(MEMBER) as member:
            data = member.read(NBYTES + 1)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, EOFError) as fault:
        why = getattr(fault, "reason", fault)
        raise DataUnavailable(
            f"the messages are not on this machine and {URL} could not be fetched ({why}); "
            f"set {VARIABLE} to a copy of the file {MEMBER} out of that archive"
        ) from fault
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise DataUnavailable(
            f"what {URL} sent is not the SMS Spam Collection: its sha256 is {found}, "
            f"not {SHA256}; set {VARIABLE} to a good copy of the file {MEMBER}"
        )
    try:
        _put(target, data)
    except OSError as fault:
        raise DataUnavailable(
            f"cannot keep the messages at {target}: {fault.strerror or fault}; set "
            f"XDG_CACHE_HOME to a folder that you may write to, or {VARIABLE} to a copy"
        ) from fault


def _put(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{MEMBER}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _fetch(progress: Progress | None) -> bytes:
    deadline = time.monotonic() + DOWNLOAD_S
    with urllib.request.urlopen(URL, timeout=SILENCE_S) as answer:
        expected = int(answer.headers.get("Content-Length") or 0)
        came = bytearray()
        while chunk := answer.read(1 << 14):
            came += chunk
            if len(came) > MAX_ARCHIVE_NBYTES:
                raise ValueError(f"more than {MAX_ARCHIVE_NBYTES} bytes came")
            if time.monotonic() > deadline:
                raise ValueError(f"only {len(came)} bytes came in {DOWNLOAD_S:g} s")
            if progress is not None:
                progress(len(came), expected)
    if expected and len(came) != expected:
        raise ValueError(f"{len(came)} of {expected} bytes came")
    return bytes(came)
