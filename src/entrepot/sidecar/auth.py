"""Who may look: those who know the token, where there is one."""

from __future__ import annotations

import hmac
import stat
from base64 import b64decode
from binascii import Error as NoBase64
from pathlib import Path

from entrepot.errors import ConfigurationError

LEAST_CHARS = 16


class Guard:
    """The token, compared in constant time. Without one, everybody may look.

    A browser asks for a name and a password; the password is the token, whatever the name.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def asks(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def allows(self, authorization: str | None) -> bool:
        """Whether a request with that header may pass."""
        if self._token is None:
            return True
        scheme, _, given = (authorization or "").partition(" ")
        said = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() == "basic":
            try:
                said = b64decode(said, validate=True).partition(b":")[2]
            except (NoBase64, ValueError):
                said = b""
        elif scheme.lower() != "bearer":
            said = b""
        return hmac.compare_digest(said, self._token)


def read_token(path: str | None) -> str | None:
    """The token in a file; None without one.

    :raises ConfigurationError: it cannot be read, is short, or others than its owner may write it.
    """
    if path is None:
        return None
    file = Path(path)
    try:
        token = file.read_text().strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigurationError(f"the token in {path} cannot be read: {fault}") from fault
    if len(token) < LEAST_CHARS or not token.isascii() or any(each.isspace() for each in token):
        raise ConfigurationError(
            f"the token in {path} has {len(token)} characters; it is {LEAST_CHARS} or more of "
            f"ASCII without a space, such as `openssl rand -hex 32` makes"
        )
    if mode & stat.S_IWOTH:
        raise ConfigurationError(f"everybody may write to {path}: chmod 0400 {path}")
    return token
