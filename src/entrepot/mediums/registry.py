"""Which class of medium an address belongs to, by the scheme that it starts with."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from entrepot.errors import BadAddress, ConfigurationError
from entrepot.mediums.base import Medium

if TYPE_CHECKING:
    from entrepot.settings import SupplierSettings

_classes: dict[str, type[Medium]] = {}


def register(scheme: str, medium_class: type[Medium]) -> None:
    """Let :func:`attach` find ``medium_class`` for addresses ``scheme:...``.

    :raises ConfigurationError: the scheme is another class's, or is not letters and digits.
    """
    if not (scheme.isascii() and scheme.isalnum()):
        raise ConfigurationError(f"a scheme is ASCII letters and digits, got {scheme!r}")
    known = _classes.setdefault(scheme, medium_class)
    if known is not medium_class:
        raise ConfigurationError(
            f"addresses {scheme}:... belong to {known.__qualname__} already; choose another scheme "
            f"for {medium_class.__qualname__}"
        )


def schemes() -> tuple[str, ...]:
    """The schemes that are known, sorted."""
    return tuple(sorted(_classes))


def class_of(address: str) -> type[Medium]:
    """The class whose scheme ``address`` starts with.

    :raises BadAddress: no medium has that scheme.
    """
    scheme, colon, _ = address.partition(":")
    medium_class = _classes.get(scheme) if colon else None
    if medium_class is None:
        raise BadAddress(
            f"{address[:200]!r} is not the address of a medium; known are "
            f"{', '.join(f'{known}:...' for known in schemes())}"
        )
    return medium_class


def attach(
    address: str,
    *,
    allowed: Collection[str] | None = None,
    settings: SupplierSettings | None = None,
) -> Medium:
    """Attach to the medium that ``address`` names, of whatever kind it is.

    :param allowed: the schemes that this supplier takes; all known ones by default.
    :param settings: see :meth:`Medium.attach`.
    :raises BadAddress: no medium has that scheme, it is not allowed, or its own check failed.
    :raises MediumGone: nothing is there (any more).
    """
    medium_class = class_of(address)
    scheme = address.partition(":")[0]
    if allowed is not None and scheme not in allowed:
        raise BadAddress(
            f"{address[:200]!r} is refused: this process takes only {', '.join(sorted(allowed))}"
        )
    return medium_class.attach(address, settings)
