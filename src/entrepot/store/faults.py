"""What a bucket's errors mean: obstore's exceptions to ours. Pure.

obstore puts what the server said into the text of its exceptions, and servers repeat there what was
sent to them. So nothing of that text is passed on but the status, S3's word for the fault, and
what the system said of the connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from entrepot.errors import (
    EntrepotError,
    NoBucket,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from entrepot.settings import variable
from entrepot.store.location import CREDENTIALS, Location

_STATUS = re.compile(r"status code: (\d{3})\b")
_STATUS_FIELD = re.compile(r"\bstatus: (\d{3}),")
_RETRIES = re.compile(r"\bafter (\d+) retries, max_retries: ")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_KIND = re.compile(r"\bkind: (Connect|Timeout|Request|Decode|Interrupted)\b")
_CREDENTIALS = re.compile(r"169\.254\.\d|token request")
"""What obstore says when it looks for credentials on the machine's metadata service."""
_SYSTEM = re.compile(r'\b(?:message|error): "([^"\\]{1,120})"')

_FULL = {"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "EntityTooLarge"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName", "BucketNotFound"}
_DENIED = {"PermissionDeniedError", "UnauthenticatedError"}
NOT_SUPPORTED = frozenset({"NotSupportedError", "NotImplementedError"})
"""What obstore raises for what a service does not have."""
_PASSING = {408, 409, 425, 429}
"""What a server says of a moment, among what it says of requests that are wrong."""

LONGER = f"{variable('store', 'attempts')} says how often it is tried"


class Kind(Enum):
    """What can be done about a fault."""

    NOT_THERE = "there is no such object"
    THERE = "something is there; or the server is busy with it"
    STALE = "what is there is not what it was"
    FINAL = "nothing was written, and nothing will be"
    UNCLEAR = "it may have been done, or not, or be done yet"


@dataclass(frozen=True)
class Fault:
    """What went wrong with one request.

    :ivar status: of HTTP; 0 where there was no answer.
    :ivar code: S3's word, such as ``NoSuchBucket``; may be empty.
    :ivar connection: what the system said, such as ``Connection refused``; may be empty.
    :ivar timed_out: nothing came in the time that there was.
    :ivar tries: how often obstore asked.
    """

    kind: Kind
    status: int = 0
    code: str = ""
    connection: str = ""
    timed_out: bool = False
    tries: int = 1

    @property
    def said(self) -> str:
        """In a few words."""
        if self.status:
            return f"{self.status} {self.code}".rstrip()
        if self.timed_out:
            return "no answer in time"
        return self.connection or "the connection broke"


def fault_of(error: BaseException) -> Fault:
    """What an exception of obstore's says. One of ours is final: no request was made."""
    if isinstance(error, EntrepotError):
        return Fault(Kind.FINAL, connection=str(error))
    name, text = type(error).__name__, str(error)
    found = _STATUS.search(text) or _STATUS_FIELD.search(text)
    status = int(found[1]) if found else 0
    code = said[1] if (said := _CODE.search(text)) else ""
    kinds = set(_KIND.findall(text))
    connection = ""
    if not status and (system := _SYSTEM.findall(text)):
        connection = system[-1]
    timed_out = not status and ("Timeout" in kinds or "timed out" in text.lower())
    kind = _kind(name, status, code)
    tries = 1 + int(again[1]) if (again := _RETRIES.search(text)) else 1
    return Fault(kind, status, code, connection, timed_out, tries)


def _kind(name: str, status: int, code: str) -> Kind:
    if code in _NO_BUCKET or name in _DENIED:
        return Kind.FINAL
    if name == "FileNotFoundError":
        return Kind.NOT_THERE
    if name == "AlreadyExistsError":
        return Kind.THERE
    if name in ("PreconditionError", "NotModifiedError"):
        return Kind.STALE
    if name in NOT_SUPPORTED or name == "InvalidPathError":
        return Kind.FINAL
    if status == 501 or (300 <= status < 500 and status not in _PASSING):
        return Kind.FINAL
    return Kind.UNCLEAR


def in_words(
    error: BaseException,
    doing: str,
    where: Location,
    tries: int = 0,
    took_s: float | None = None,
) -> StoreError:
    """The error of ours.

    :param doing: what was tried, as in "cannot ...".
    :param tries: how often, if it was not obstore that tried again.
    :param took_s: how long that was, in seconds.
    """
    fault = fault_of(error)
    status, code, at = fault.status, fault.code, where.service
    if _CREDENTIALS.search(str(error)):  # whatever was answered, it was not the bucket's answer
        return StoreDenied(
            f"no credentials for {at} were found to {doing}; set {CREDENTIALS[where.scheme]}"
        )
    if code in _NO_BUCKET:
        return NoBucket(
            f"there is no bucket {where.bucket!r} at {at} ({fault.said}); make it with "
            f"`entrepot store init '{where.url}'`, or check its name"
        )
    if status in (401, 403) or type(error).__name__ in _DENIED:
        return StoreDenied(f"{at} refuses to {doing} ({fault.said}); {_remedy(code, where)}")
    if code in _FULL or status in (413, 507):
        return StoreFull(f"{at} has no room to {doing} ({fault.said}); see its quota and its disks")
    if status in (301, 307) or code in ("PermanentRedirect", "AuthorizationHeaderMalformed"):
        return StoreUnreachable(
            f"{at} does not have bucket {where.bucket!r} in this region ({fault.said}); name its "
            f"region in the URL, such as ?region=eu-central-1"
        )
    times = how_long(tries or fault.tries, took_s)
    # What obstore did not ask for again, no setting has asked for again.
    longer = f"; {LONGER}" if fault.tries > 1 else ""
    if not status:
        return StoreUnreachable(
            f"{at} does not answer: cannot {doing} ({fault.said}{times}); check that it runs and "
            f"that the endpoint is right{longer}"
        )
    if status >= 500 or status in _PASSING:
        return StoreUnreachable(
            f"{at} cannot {doing} now: it answered {fault.said}{times}; look at its log{longer}"
        )
    return StoreError(
        f"{at} answered {fault.said} and would not {doing}; is it a bucket's endpoint?"
    )


def how_long(tries: int, took_s: float | None) -> str:
    """``, 5 times in 21.5 s``; of one try that took no time, nothing."""
    if tries > 1:
        return f", {tries} times" + ("" if took_s is None else f" in {took_s:.1f} s")
    return "" if took_s is None or took_s < 0.1 else f", after {took_s:.1f} s"


def _remedy(code: str, where: Location) -> str:
    known = CREDENTIALS[where.scheme]
    if code in ("RequestTimeTooSkewed", "RequestExpired"):
        return "this machine's clock and the store's differ; set both by NTP"
    if code in ("ExpiredToken", "TokenRefreshRequired"):
        return "the session token has expired; get a new one"
    if code in ("SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken"):
        return f"the key or its secret is wrong; check {known}"
    return f"check {known}, and that they may read, write, list and delete in {where.bucket!r}"
