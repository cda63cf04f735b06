"""What keeps the demonstration from its end."""

from __future__ import annotations

from entrepot.errors.root import EntrepotError


class DataUnavailable(EntrepotError, OSError):
    """The messages are not on this machine and could not be fetched, or are not the right ones."""

    code = "data_unavailable"


class DemoFailed(EntrepotError):
    """Something that the demonstration verifies did not hold, or one of its parts ended early."""

    code = "demo_failed"
