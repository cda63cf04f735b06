"""A script that starts a supplier or a stage in a thread ends with its last line, or its error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from entrepot import Broker, Client, ShmMedium
from tests.peer.waiting import until

ANY = "tcp://127.0.0.1:*"

SUPPLIER = """
import os, sys, threading
from entrepot import Supplier

began = threading.Event()

def make(work, out):
    began.set()
    os.read(0, 1)  # until the script is at its end
    out[:4] = b"made"
    return 4

supplier = Supplier(sys.argv[1], {"x": make}, credit=2).start()
supplier.wait_registered(30)
began.wait()
"""

STAGE = """
import sys
from entrepot.stages import StageServer

server = StageServer(sys.argv[1], "clean", lambda **values: values).start()
server.wait_registered(30)
"""

FOR_EVER = """
import sys, threading
from entrepot import Supplier
from entrepot.settings import SupplierSettings

began, never = threading.Event(), threading.Event()

def make(product_id):
    began.set()
    never.wait()

settings = SupplierSettings(drain_s=0.1)
supplier = Supplier(sys.argv[1], {"x": make}, settings=settings).start()
began.wait()
"""


@contextmanager
def started(script: str, broker: Broker) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", script, broker.backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("", 0, b""), ("raise ValueError('main is done')", 1, b"ValueError: main is done\n")],
)
def test_a_supplier_finishes_what_it_has_begun(end: str, code: int, said: bytes) -> None:
    with (
        Broker(ANY, ANY) as broker,
        Client(broker.frontend, ShmMedium.create(64, 4)) as client,
        started(SUPPLIER + end, broker) as child,
    ):
        begun, waits = client.order("x"), client.order("x")
        until(lambda: client.stats()["orders"]["queued"] == 1, limit_s=60)  # the other went back
        assert child.stdin is not None
        child.stdin.write(b"g")
        child.stdin.flush()
        with begun.result(60) as product:
            assert product.bytes() == b"made"
        assert not waits.done
        assert child.wait(60) == code
        assert child.stderr is not None
        assert child.stderr.read().endswith(said)


def test_a_stage_ends_as_well() -> None:
    with Broker(ANY, ANY) as broker, started(STAGE, broker) as child:
        assert child.wait(60) == 0


def test_a_function_that_never_returns_is_not_waited_for_for_ever() -> None:
    with (
        Broker(ANY, ANY) as broker,
        Client(broker.frontend, ShmMedium.create(64, 4)) as client,
        started(FOR_EVER, broker) as child,
    ):
        order = client.order("x")
        assert child.wait(60) == 0
        assert child.stderr is not None
        assert b"is still making a product 5.1 s after stop" in child.stderr.read()
        order.cancel()
