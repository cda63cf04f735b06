"""Requests of strangers: whatever they say, the server answers in words and goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entrepot.errors import ProductTooLarge
from entrepot.market.function import Kind
from entrepot.market.protocol import WorkItem
from entrepot.market.work import Work
from entrepot.mediums import ShmMedium
from entrepot.stages import StageServer, TorchStageServer
from entrepot.stages.protocol import REPLY, REQUEST, VERBS, Reply, Request
from entrepot.stages.serving import Server
from entrepot.stages.values import Value
from entrepot.store import Store
from tests.unit.stages.cuts import CONFIG, build

NOWHERE = "tcp://127.0.0.1:1"
FIXED = HealthCheck.function_scoped_fixture

counts = st.integers(0, 5)
texts = st.sampled_from(["", "r", "s", "0", "{}", '{"dim":4,"lr":0.1,"seed":1}', "[", "\u05e9"])
values = st.dictionaries(
    st.sampled_from(["0", "1", "x"]),
    st.sampled_from(
        [
            np.zeros((2, 3), np.int64),
            np.full((2, 3), 10**9),
            np.ones((2, 4), np.float32),
            np.ones((2, 2), np.float32),
            np.zeros(0, np.float32),
            "text",
            ["text"],
            b"bytes",
        ]
    ),
    max_size=2,
)
requests = st.builds(
    Request,
    stage=st.sampled_from(["embed", "other"]),
    verb=st.sampled_from([*VERBS, "nothing"]),
    wants=texts,
    run=texts,
    config=texts,
    begin=texts,
    instance=st.sampled_from(["", "", "mine", "other"]),
    step=counts,
    call=counts,
    after=counts,
    of=st.none() | counts,
    train=st.booleans(),
    keep=st.booleans(),
    zero=st.booleans(),
    names=st.lists(st.sampled_from(["0", "1", "x"]), max_size=2),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TorchStageServer]:
    store = Store(tmp_path / "store", durable=False)
    with TorchStageServer(NOWHERE, "embed", build, store=store, max_runs=2) as server:
        yield server


def asked(server: Server, verb: str, data: bytes) -> Reply:
    """What it answers to these bytes."""
    out = memoryview(bytearray(1 << 16))
    parts = server._fill(Work("o", f"stage/embed/{verb}", len(out), memoryview(data)), out)
    reply, _ = REPLY.decode(memoryview(b"".join(parts)))
    return reply


@given(sent=st.lists(st.tuples(requests, values), max_size=12))
@settings(max_examples=40, suppress_health_check=[FIXED])
def test_no_requests_whatever_stop_a_server(
    server: TorchStageServer, sent: list[tuple[Request, dict[str, Any]]]
) -> None:
    for request, given_ in sent:
        if request.instance == "mine":
            request.instance = server.instance
        reply = asked(server, request.verb, REQUEST.encode(request, given_).tobytes())
        assert reply.code == "ok" or reply.error
        assert server.runs <= 2
    good = Request(
        stage="embed",
        verb="forward",
        run="good",
        config='{"dim":4,"lr":0.1,"seed":1}',
        begin="good",
    )
    for run in list(server._runs.values()):
        run.held.clear()
    words = {"0": np.zeros((2, 3), np.int64)}
    assert asked(server, "forward", REQUEST.encode(good, words).tobytes()).code == "ok"


@given(st.binary(max_size=300))
@settings(suppress_health_check=[FIXED])
def test_no_bytes_whatever_stop_a_server(server: TorchStageServer, data: bytes) -> None:
    assert asked(server, "forward", data).code == "stage_message"


@given(data=st.data())
@settings(suppress_health_check=[FIXED])
def test_no_damaged_request_is_carried_out(server: TorchStageServer, data: st.DataObject) -> None:
    request = Request(stage="embed", verb="step", run="r", config=_json(), begin="b", call=1)
    whole = bytearray(REQUEST.encode(request).tobytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    if place in range(20, 24):  # four bytes that mean nothing yet
        return
    assert asked(server, "step", bytes(whole)).code in ("stage_message", "stage_mismatch")
    assert server.runs == 0


def test_a_slot_that_has_no_room_for_an_error_fails_its_order(server: TorchStageServer) -> None:
    item = WorkItem("o", 1, "stage/embed/forward", "nowhere", 0, 10)
    kind = Kind(server._fill, None)
    with ShmMedium.create(10, 1) as medium:
        out = medium.view(0, 10, writable=True)
        parts = kind.function(Work("o", item.product_id, 10, memoryview(b"")), out)
        with pytest.raises(ProductTooLarge, match="a slot of 10"):
            kind.filled(item, medium, out, parts, True)


def test_a_request_that_its_slots_next_user_wrote_over_is_not_carried_out(
    server: TorchStageServer,
) -> None:
    """A cancelled order's slot may have another request in it, or half of one."""
    request = Request(stage="embed", verb="step", run="r", config=_json(), begin="b", call=1)
    one = REQUEST.encode(request).tobytes()
    request.verb = "forward"
    two = REQUEST.encode(request, {"0": np.zeros((2, 3), np.int64)}).tobytes()
    assert asked(server, "step", two[: len(one)]).code == "stage_message"
    assert asked(server, "step", two).code == "stage_message"
    assert server.runs == 0


def test_a_stateless_server_keeps_nothing_of_a_request() -> None:
    def forward(x: Value) -> Value:
        assert isinstance(x, np.ndarray)
        x += 1
        return x

    with StageServer(NOWHERE, "embed", forward) as server:
        data = REQUEST.encode(Request(stage="embed", verb="forward"), {"0": np.zeros(3)}).tobytes()
        before = bytes(data)
        for _ in range(2):
            assert asked(server, "forward", data).code == "ok"
        assert data == before


def _json() -> str:
    return json.dumps(CONFIG)
