"""The connections to one bucket, opened when they are needed, and anew in a forked child.

Three kinds, since a request may be asked for again, or must not be, and may be short or long:

- ``ONCE``: whatever must not be sent twice unseen, such as a claim. Its caller tries again.
- ``STEADY``: records, listings, deletions. Asked for again, with growing pauses.
- ``BULK``: blobs. Likewise, and each pause of the sender may be longer.

A deletion, and a blob that is put for the first time, are asked for again where the server said
that it failed, or took no connection; obstore does not ask for them twice where nothing was said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any

from entrepot.errors import ConfigurationError
from entrepot.settings import StoreSettings
from entrepot.store import library
from entrepot.store.location import Location

DEFAULT_REGION = "us-east-1"

_SIGNED_BY = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
LONGEST = timedelta(hours=6)
"""A request that makes progress may take so long."""


class Use(Enum):
    ONCE = "once"
    STEADY = "steady"
    BULK = "bulk"


class Clients:
    """See the module.

    :param environment: where credentials are; they are read when a connection is opened.
    """

    def __init__(
        self, location: Location, settings: StoreSettings, environment: Mapping[str, str]
    ) -> None:
        self.location = location
        self.settings = settings
        self._environment = environment
        self._pid = os.getpid()
        self._open: dict[Use, Any] = {}

    def at(self, use: Use) -> Any:
        """The obstore store for this use, of this process.

        :raises MissingExtra: obstore is not installed.
        :raises ConfigurationError: credentials or endpoint are such that it cannot be made.
        """
        if self._pid != os.getpid():
            # What was inherited belongs to the parent, who still has it.
            self._pid, self._open = os.getpid(), {}
        found = self._open.get(use)
        if found is None:
            found = self._open.setdefault(use, self._made(use))
        return found

    def close(self) -> None:
        self._open = {}

    def _made(self, use: Use) -> Any:
        obstore = library.obstore()
        where = self.location
        options: dict[str, Any] = {
            "client_options": self._client_options(use),
            "retry_config": self._retries(use),
        }
        try:
            if where.scheme == "s3":
                return obstore.store.S3Store(where.bucket, config=self._s3(), **options)
            if where.scheme == "gs":
                return obstore.store.GCSStore(where.bucket, config=self._gs(), **options)
            return obstore.store.AzureStore(where.bucket, config=self._az(), **options)
        except Exception as error:  # whatever it is, its text may hold what it was given
            raise ConfigurationError(
                f"no connection to {where.url} can be made ({type(error).__name__}); check "
                f"endpoint and region, and that the credentials in the environment are whole"
            ) from None

    @property
    def are_anonymous(self) -> bool:
        """Whether nothing is signed: at an endpoint of somebody's own, without credentials.

        The machine's metadata service has none for it, and takes long to say so.
        """
        known = any(self._environment.get(name) for name in _SIGNED_BY)
        return self.location.scheme == "s3" and self.location.endpoint is not None and not known

    # --- configuration ------------------------------------------------------------------

    def _client_options(self, use: Use) -> dict[str, Any]:
        settings = self.settings
        silence_s = settings.transfer_timeout_s if use is Use.BULK else settings.timeout_s
        options: dict[str, Any] = {
            "connect_timeout": timedelta(seconds=settings.connect_timeout_s),
            "read_timeout": timedelta(seconds=silence_s),
            # Small requests have no need for more; a blob may take as long as it gets on.
            "timeout": LONGEST if use is Use.BULK else timedelta(seconds=4 * silence_s),
            "pool_max_idle_per_host": str(settings.concurrency),
        }
        if (self.location.endpoint or "").startswith("http://"):
            options["allow_http"] = True
        return options

    def _retries(self, use: Use) -> dict[str, Any]:
        settings = self.settings
        most = 0 if use is Use.ONCE else settings.attempts - 1
        silence_s = settings.transfer_timeout_s if use is Use.BULK else settings.timeout_s
        pause_s = max(settings.max_backoff_s, settings.backoff_s)
        return {
            "max_retries": most,
            # After so long obstore tries no more, however many tries it has left: no less than
            # what all of them may take, or the number would say nothing of a server that hangs.
            "retry_timeout": timedelta(seconds=settings.attempts * (silence_s + pause_s)),
            "backoff": {
                "init_backoff": timedelta(seconds=settings.backoff_s),
                "max_backoff": timedelta(seconds=pause_s),
                "base": 2,
            },
        }

    def _s3(self) -> dict[str, Any]:
        where = self.location
        config: dict[str, Any] = {"disable_bulk_delete": True}
        if where.endpoint is not None:
            # Both, since a variable for S3 alone would win over a plain endpoint.
            config["endpoint"] = config["aws_endpoint_url_s3"] = where.endpoint
            config["skip_signature"] = self.are_anonymous
        if where.region is not None:
            config["region"] = where.region
        elif not any(self._environment.get(f"AWS_{name}") for name in ("REGION", "DEFAULT_REGION")):
            config["region"] = DEFAULT_REGION
        return config

    def _gs(self) -> dict[str, Any]:
        where = self.location
        if where.endpoint is None:
            return {}
        return {"base_url": where.endpoint, "skip_signature": True}

    def _az(self) -> dict[str, Any]:
        where = self.location
        config: dict[str, Any] = {}
        if where.account is not None:
            config["account_name"] = where.account
        if where.endpoint is not None:
            config["endpoint"] = where.endpoint
        return config
