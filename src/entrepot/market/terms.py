"""Contracts on the wire: digests, which the broker compares, and words, for who has another.

The broker reads neither. What a supplier's contract says goes to a client that was refused, which
knows its own and says how they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from entrepot.arguments import checked_text, shown
from entrepot.errors import ConfigurationError, ContractError
from entrepot.market.protocol import TERMS_CHARS

if TYPE_CHECKING:
    from entrepot.contract import Contract

DIGEST_CHARS = 256
"""Longest digest of a contract; what the protocol allows."""

MAX_TERMS = 64
"""Contracts of one supplier that are told in words."""


def digest_of(contract: Contract | str | None) -> str | None:
    """A client's: the contract's digest, or itself.

    :raises ConfigurationError: it is neither.
    """
    digest = getattr(contract, "digest", contract)
    if digest is None:
        return None
    if not isinstance(digest, str):
        raise ConfigurationError(
            f"contract is a Contract, or the digest of one, got {shown(contract)}"
        )
    return checked_text("contract", digest, DIGEST_CHARS)


def digests_of(contracts: Any) -> dict[str, str]:
    """A supplier's: the digest for each pattern that has a contract.

    :raises ConfigurationError: they are not ``{pattern: Contract}``.
    """
    if contracts is None:
        return {}
    if not isinstance(contracts, Mapping):
        raise ConfigurationError(f"contracts are {{pattern: Contract}}, got {shown(contracts)}")
    digests = {}
    for pattern, contract in contracts.items():
        digest = getattr(contract, "digest", None)
        if not isinstance(digest, str):
            raise ConfigurationError(
                f"contracts are {{pattern: Contract}}, got {shown(contract)} for {shown(pattern)}"
            )
        digests[pattern] = digest
    return digests


def terms_of(contracts: Mapping[str, Contract]) -> dict[str, str]:
    """By digest, what each contract says; those that are too long to be told are left out."""
    terms: dict[str, str] = {}
    for contract in contracts.values():
        said = msgspec.json.encode(contract.to_dict()).decode()
        if len(said) <= TERMS_CHARS and len(terms) < MAX_TERMS:
            terms[contract.digest] = said
    return terms


def difference(contract: Contract | str | None, terms: str) -> str:
    """How a supplier's contract differs from the client's, to go on a sentence with; or nothing."""
    if contract is None or isinstance(contract, str):
        return ""
    try:
        lines = contract.difference(contract.from_dict(msgspec.json.decode(terms))).splitlines()
    except (ContractError, ValueError):  # who registered it may have said anything
        return ""
    return f" (client here, supplier there): {'; '.join(lines)}" if lines else ""
