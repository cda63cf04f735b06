"""Making a bucket, which obstore cannot: one request to a URL that it signs."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from contextlib import closing
from importlib import import_module
from pathlib import Path

from entrepot.errors import ConfigurationError, NoBucket, StoreDenied, StoreUnreachable
from entrepot.settings import read_settings
from entrepot.store.base import Store
from entrepot.store.layout import MANIFEST
from entrepot.store.location import CREDENTIALS, Location, location_at
from entrepot.store.opening import folder_of
from entrepot.store.requests import Requests

MAKE_TIMEOUT_S = 60.0
"""Some servers make a bucket's files before they answer."""

PLAIN_REGIONS = (None, "us-east-1")
"""Where a bucket is made without naming the region."""

_REGION = (
    '<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
)
_ELSEWHERE = {
    "gs": "gcloud storage buckets create gs://{bucket}",
    "az": "az storage container create --name {bucket}",
}


def make_store(url: str) -> bool:
    """Have a store at the URL, with its bucket or folder; whether there was none until now.

    :raises ConditionalPutIgnored: see :func:`entrepot.store.proof.prove`.
    """
    path = folder_of(url)
    if path is not None:
        there = Path(path).joinpath(MANIFEST).exists()
        Store.open(url).close()
        return not there
    # By name: a folder needs nothing of it.
    bucket = import_module("entrepot.store.bucket").BucketStore
    try:
        store = bucket.from_url(url)
    except NoBucket:
        make_bucket(location_at(url, os.environ))
        store = bucket.from_url(url)
    with store:
        return bool(store.made)


def make_bucket(location: Location) -> None:
    """Make the S3 bucket. One that is there, and ours, is as good.

    :raises ConfigurationError: it is Google's or Azure's: their own tools make those.
    """
    if location.scheme != "s3":
        command = _ELSEWHERE[location.scheme].format(bucket=location.bucket)
        raise ConfigurationError(
            f"there is no bucket {location.bucket!r} at {location.service}; make it with "
            f"`{command}`"
        )
    region = location.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    body = "" if region in PLAIN_REGIONS else _REGION.format(region=region)
    with closing(Requests(location, read_settings().store, os.environ)) as requests:
        url = requests.signed_url_of_bucket("PUT")
    # The URL is as good as a credential: no error may have it, and so none is passed on.
    status, why = _put(url, body.encode())
    doing = f"make bucket {location.bucket!r} at {location.service}"
    if status in (401, 403):
        raise StoreDenied(
            f"cannot {doing} ({status}); check {CREDENTIALS['s3']}, and that they may make buckets"
        )
    if status == 409 and "BucketAlreadyOwnedByYou" not in why:
        raise StoreDenied(f"cannot {doing}: somebody else has one of that name; choose another")
    if status not in (200, 201, 204, 409):
        said = why if not status else str(status)
        raise StoreUnreachable(
            f"cannot {doing} ({said}); look at its log, or make it there by hand"
        )


def _put(url: str, body: bytes) -> tuple[int, str]:
    """Status and text of the answer; 0 and why there was none."""
    if not url.startswith(("http://", "https://")):
        return 0, "no HTTP endpoint"
    request = urllib.request.Request(url, data=body, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=MAKE_TIMEOUT_S) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(4096).decode(errors="replace")
    except OSError as error:
        reason = getattr(error, "reason", error)
        return 0, str(getattr(reason, "strerror", None) or type(reason).__name__)
