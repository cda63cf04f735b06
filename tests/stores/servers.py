"""Real S3 servers on loopback: SeaweedFS keeps ``If-None-Match``, rclone's does not.

Both are programs from PyPI. A server is a process of its own with a folder of its own; it is ready
once it answers, and ended by its id.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import obstore
from obstore.store import S3Store

from tests.ports import Ports

START_S = 60.0
"""How long a server may take to start on a busy machine."""

KEY, SECRET = "entrepot-test-key", "entrepot-test-secret-0123456789"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
"""What the servers with credentials take, for ``os.environ``."""


class ServerFailed(RuntimeError):
    """A server did not start; the message has the end of its log."""


class Server:
    """A running server.

    :ivar endpoint: ``http://127.0.0.1:port``.
    :ivar pid: its process id.
    """

    name = "a server"

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="entrepot-s3-"))
        self.data = self._folder / "data"
        self.data.mkdir()
        self._log: IO[bytes] = (self._folder / "log").open("wb")
        self._reserved = Ports(self.wants())
        self.ports = self._reserved.numbers
        self.endpoint = f"http://127.0.0.1:{self.ports[0]}"
        self._process = subprocess.Popen(
            self.command(),
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self._folder)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.pid = self._process.pid
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def wants(self) -> int:
        """How many ports it needs; the first is where it serves."""
        return 1

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def make(self, bucket: str) -> None:
        """Make a bucket."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, and remove all that it had."""
        self._process.kill()
        self._process.wait()
        self._reserved.close()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self) -> None:
        give_up = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > give_up:
                said = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise ServerFailed(f"{self.name} did not start ({self._process.poll()}):\n{said}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        """Whether it answers, with whatever status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()


class SeaweedServer(Server):
    """SeaweedFS: master, volume server, filer and S3 in one process.

    :param signed: whether it wants requests signed with :data:`KEY`; otherwise it takes all.
    """

    name = "SeaweedFS"

    def __init__(self, *, signed: bool = True) -> None:
        self.signed = signed
        super().__init__()

    def wants(self) -> int:
        return 8

    def command(self) -> Sequence[str]:
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        anonymous = {"name": "anonymous", "actions": identity["actions"]}
        config = {"identities": [identity if self.signed else anonymous]}
        (self._folder / "s3.json").write_text(json.dumps(config))
        s3, *others = map(str, self.ports)
        names = ("master", "volume", "filer")
        ports = [
            f"-{name}.port{kind}={port}"
            for (name, kind), port in zip(
                [(name, kind) for name in names for kind in ("", ".grpc")], others[1:], strict=True
            )
        ]
        return [
            program("weed"),
            "server",
            f"-dir={self.data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=100",
            *ports,
            "-s3",
            f"-s3.port={s3}",
            f"-s3.port.grpc={others[0]}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
            f"-s3.config={self._folder / 's3.json'}",
        ]

    def make(self, bucket: str) -> None:
        store = S3Store(
            bucket,
            config={
                "endpoint": self.endpoint,
                "region": "us-east-1",
                "access_key_id": KEY,
                "secret_access_key": SECRET,
                "skip_signature": not self.signed,
            },
            client_options={"allow_http": True},
        )
        url = f"{self.endpoint}/{bucket}"
        if self.signed:
            url = obstore.sign(store, "PUT", "", timedelta(minutes=1))
        give_up = time.monotonic() + START_S
        while True:
            try:
                request = urllib.request.Request(url, data=b"", method="PUT")
                with urllib.request.urlopen(request, timeout=START_S):
                    break
            except urllib.error.HTTPError as error:
                # It answers before its filer knows the volume server.
                if error.code < 500 or time.monotonic() > give_up:
                    raise
        self._warm(store)

    def _warm(self, store: S3Store) -> None:
        """The first writes to a bucket make its volumes, which takes seconds."""
        give_up = time.monotonic() + START_S
        while True:
            try:
                obstore.put(store, "warm", b"warm")
                obstore.delete(store, "warm")
                return
            except Exception:
                if time.monotonic() > give_up:
                    raise


class RcloneServer(Server):
    """``rclone serve s3``: writes whatever ``If-None-Match`` says."""

    name = "rclone serve s3"

    def command(self) -> Sequence[str]:
        return [
            program("rclone"),
            "serve",
            "s3",
            "--config=/dev/null",
            f"--addr=127.0.0.1:{self.ports[0]}",
            "--vfs-cache-mode=off",
            str(self.data),
        ]

    def make(self, bucket: str) -> None:
        url = f"{self.endpoint}/{bucket}"
        with urllib.request.urlopen(urllib.request.Request(url, data=b"", method="PUT")):
            pass


def program(name: str) -> str:
    """Where a program is that was installed beside this Python.

    :raises ServerFailed: it is not.
    """
    found = shutil.which(
        name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        raise ServerFailed(f"there is no {name}; pip install 'entrepot[test]'")
    return found
