"""Where a bucket is: its URL taken apart and put together again. Pure, and without credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from entrepot.errors import ConfigurationError

SCHEMES = ("s3", "gs", "az")

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN for temporary ones",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a SAS token",
}
"""Where credentials come from, as a sentence has it."""

_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_OPTIONS = {
    "s3": ("endpoint", "region"),
    "gs": ("endpoint",),
    "az": ("endpoint", "account"),
}
_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_PUBLIC = {
    "s3": "https://s3.amazonaws.com",
    "gs": "https://storage.googleapis.com",
    "az": "https://blob.core.windows.net",
}


@dataclass(frozen=True)
class Location:
    """A place in a bucket.

    :ivar scheme: ``s3``, ``gs`` or ``az``.
    :ivar bucket: bucket, or container.
    :ivar prefix: the folder in it, without slashes at its ends; may be empty.
    :ivar endpoint: ``http://host:port``; none for the scheme's own service.
    :ivar region: S3's.
    :ivar account: Azure's.
    """

    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    account: str | None = None

    @property
    def url(self) -> str:
        """What :func:`location_at` takes to give this again."""
        said = {name: value for name in _OPTIONS[self.scheme] if (value := getattr(self, name))}
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        query = f"?{urlencode(said, safe=':/')}" if said else ""
        return f"{self.scheme}://{self.bucket}{path}{query}"

    @property
    def service(self) -> str:
        """The endpoint, for people."""
        return self.endpoint or _PUBLIC[self.scheme]


def location_at(url: str, environment: Mapping[str, str]) -> Location:
    """``s3://bucket/prefix?endpoint=http://host:9000``, taken apart.

    :param environment: the variables that name an endpoint if the URL does not.
    :raises ConfigurationError: it is no such URL.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"the URL of a bucket holds no credentials; they are taken from "
            f"{CREDENTIALS.get(parts.scheme, 'the environment')}"
        )
    if parts.scheme not in SCHEMES or parts.fragment:
        raise ConfigurationError(
            f"{url!r:.200} is no bucket: write s3://bucket/prefix?endpoint=http://host:9000, "
            f"gs://bucket/prefix or az://container/prefix?account=name"
        )
    options: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS[parts.scheme] or name in options or not value:
            raise ConfigurationError(
                f"{parts.scheme}:// takes {' and '.join(_OPTIONS[parts.scheme])} after the "
                f"question mark, once each, and not {name!r:.50}"
            )
        options[name] = value
    return located(parts.scheme, parts.netloc, unquote(parts.path), environment, **options)


def located(
    scheme: str,
    bucket: str,
    prefix: str,
    environment: Mapping[str, str],
    *,
    endpoint: str | None = None,
    region: str | None = None,
    account: str | None = None,
) -> Location:
    """The place, if it can be one.

    :raises ConfigurationError: bucket, prefix or endpoint cannot be what they are.
    """
    if not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            f"{bucket!r:.100} is no name of a bucket, which has letters, digits, - and ., three "
            f"at least"
        )
    parts = prefix.strip("/").split("/") if prefix.strip("/") else []
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise ConfigurationError(
            f"{prefix!r:.200} is no prefix in a bucket: its parts are not empty, no dots, and can "
            f"be printed"
        )
    if endpoint is None:
        named = (environment.get(name) for name in _ENDPOINT_VARIABLES[scheme])
        endpoint = next(filter(None, named), None)
    return Location(
        scheme, bucket, "/".join(parts), endpoint and _checked_endpoint(endpoint), region, account
    )


def _checked_endpoint(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_one = urlsplit(""), False
    if "@" in parts.netloc:
        raise ConfigurationError(
            "the endpoint of a bucket holds no credentials; they are taken from the environment"
        )
    good = parts.scheme in ("http", "https") and parts.hostname and port_is_one
    if not good or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{endpoint!r:.200} is no endpoint, which reads http://host:port or https://host"
        )
    return endpoint.rstrip("/")
