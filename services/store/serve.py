"""SeaweedFS in the place of MinIO: the same command, port and variables.

    serve.py server /data

S3 is on port 9000. ``MINIO_ROOT_USER_FILE`` and ``MINIO_ROOT_PASSWORD_FILE`` name files with the
keys.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

CONFIG = Path("/tmp/s3.json")


def secret(variable: str) -> str:
    file = os.environ.get(variable, "")
    try:
        said = Path(file).read_text().strip()
    except OSError as fault:
        sys.exit(f"store: cannot read the file that {variable} names, {file!r}: {fault.strerror}")
    if not said:
        sys.exit(f"store: {file}, which {variable} names, is empty")
    return said


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] != "server":
        sys.exit("store: say `server FOLDER`")
    keys = {
        "accessKey": secret("MINIO_ROOT_USER_FILE"),
        "secretKey": secret("MINIO_ROOT_PASSWORD_FILE"),
    }
    identity = {
        "name": "entrepot",
        "credentials": [keys],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    CONFIG.touch(mode=0o600)
    CONFIG.write_text(json.dumps({"identities": [identity]}))
    command = [
        "weed",
        "server",
        f"-dir={sys.argv[2]}",
        "-ip=127.0.0.1",
        "-ip.bind=0.0.0.0",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=100",
        "-s3",
        "-s3.port=9000",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        f"-s3.config={CONFIG}",
    ]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
