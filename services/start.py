"""The first process of a service: what only its container knows, then the program itself.

    start.py entrepot broker

What a variable ``NAME_FILE`` points to becomes ``NAME``, for the credentials of a bucket, which are
read from the environment. They stand in no argument, no log and no image. The program takes this
process's place, so that it gets the signals.
"""

from __future__ import annotations

import os
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

MESSAGES = Path(os.environ.get("SMS_FOLDER", "/data"))
"""Where the SMS messages are, or come to when they are downloaded."""


def main(command: list[str]) -> None:
    if not command:
        sys.exit("start: no command was given")
    for name in SECRETS:
        file = os.environ.pop(f"{name}_FILE", "")
        if file:
            os.environ[name] = secret(name, Path(file))
    if os.environ.get("ENTREPOT_CLIENT__TCP_HOST") == "0.0.0.0":
        endpoint = os.environ.get("ENTREPOT_CLIENT__ENDPOINT", "")
        os.environ.setdefault("ENTREPOT_CLIENT__TCP_ADVERTISE", own_address(endpoint))
    os.environ.setdefault("SMS_FOLDER", str(MESSAGES))
    collection = MESSAGES / "SMSSpamCollection"
    if collection.is_file():
        os.environ.setdefault("ENTREPOT_SMS_DATA", str(collection))
    else:
        os.environ.setdefault("XDG_CACHE_HOME", str(MESSAGES))
    try:
        os.execvp(command[0], command)
    except OSError as fault:
        sys.exit(f"start: cannot run {command[0]}: {fault.strerror}")


def own_address(endpoint: str) -> str:
    """Where suppliers find this container: its address on the way to the broker, so that no product
    waits for a name server; or its name, where there is no such way yet. Other names of the service
    may be its siblings'."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            mine: str = probe.getsockname()[0]
    except (OSError, ValueError):
        return socket.gethostname()
    return socket.gethostname() if ip_address(mine).is_loopback else mine


def secret(name: str, file: Path) -> str:
    """What the file says, without the line's end."""
    try:
        said = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "it is no text"
        sys.exit(
            f"start: cannot read {file}, which {name}_FILE names: {why}; "
            f"let uid {os.getuid()} read it"
        )
    if not said:
        sys.exit(f"start: {file}, which {name}_FILE names, is empty; write the secret into it")
    return said


if __name__ == "__main__":
    main(sys.argv[1:])
