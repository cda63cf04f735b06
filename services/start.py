"""The first process of a service: what only its container knows, then the program itself.

    start.py entrepot broker

What a variable ``NAME_FILE`` points to becomes ``NAME``, for the credentials of a bucket, which are
read from the environment. They stand in no argument, no log and no image. The program takes this
process's place, so that it gets the signals.
"""

from __future__ import annotations

import os
import sys
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
