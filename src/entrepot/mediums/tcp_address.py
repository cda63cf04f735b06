"""Addresses of a TCP medium: where its owner listens, and where suppliers are told to connect."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address

from entrepot.errors import BadAddress, ConfigurationError, MediumError

BACKLOG = 128
"""Connections that may wait to be accepted."""

_HOST = r"[0-9A-Za-z](?:[0-9A-Za-z._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}(?:%[0-9A-Za-z._-]{1,15})?\]"
_ADDRESS = re.compile(rf"tcp:({_HOST}):([0-9]{{1,5}})/([0-9a-f]{{32}})")
_ADVERTISED = re.compile(rf"({_HOST})(?::([0-9]{{1,5}}))?")


def taken_apart(address: str) -> tuple[str, int, bytes]:
    """Host, port and token.

    :raises BadAddress: it has none.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise bad_address(address)
    host = match[1].strip("[]")
    return host, int(match[2]), bytes.fromhex(match[3])


def bad_address(address: str) -> BadAddress:
    """The error that says so."""
    return BadAddress(
        f"{address[:200]!r} is not the address of a TCP order, which reads "
        f"tcp:<host>:<port>/<32 hex digits>"
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    :raises ConfigurationError: ``host`` is no place.
    :raises MediumError: another has the port, or ``host`` is another machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError) as error:
        raise ConfigurationError(f"{host!r} is no place to listen: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise MediumError(
            f"cannot listen at {host}, port {port}: {error}; is it an address of this machine, "
            f"and the port free?"
        ) from error
    return listener


def advertised(host: str, advertise: str | None, listener: socket.socket) -> str:
    """``host:port`` as it stands in addresses.

    :raises ConfigurationError: it would lead nowhere.
    """
    port = str(listener.getsockname()[1])
    if advertise is not None:
        bare = f"[{advertise}]" if advertise.count(":") > 1 and "[" not in advertise else advertise
        match = _ADVERTISED.fullmatch(bare)
        if match is None or not 0 < int(match[2] or port) < 65_536:
            raise ConfigurationError(
                f"advertise={advertise!r} is neither host nor host:port; an IPv6 address stands "
                f"in brackets before a port"
            )
        return f"{match[1]}:{match[2] or port}"
    listens_at = listener.getsockname()[0]
    if _is(listens_at, "is_unspecified"):
        return f"{_bracketed(_own_address(listener.family))}:{port}"
    return f"{_bracketed(host)}:{port}"


def _own_address(family: socket.AddressFamily | int) -> str:
    """The address of this machine's own name, which in a container is what others connect to."""
    name = socket.gethostname()
    families = {family, socket.AF_INET} if family == socket.AF_INET6 else {family}
    try:
        found = [
            str(each[4][0])
            for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            if each[0] in families
        ]
    except OSError:
        found = []
    for address in found:
        if not _is(address, "is_loopback") and not _is(address, "is_link_local"):
            return address
    raise ConfigurationError(
        f"listening everywhere, but where are suppliers to connect? This machine's name, {name}, "
        f"leads to {', '.join(found) or 'nothing'}; give advertise, the name or address by which "
        f"they reach it"
    )


def _is(host: str, what: str) -> bool:
    return bool(getattr(ip_address(host.partition("%")[0]), what))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
