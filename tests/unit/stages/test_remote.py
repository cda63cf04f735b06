"""Stateless stages: what goes in comes out, whatever it is, and every fault is said in words."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entrepot.contract import Contract
from entrepot.errors import (
    BadStageMessage,
    BrokerUnavailable,
    Closed,
    ConfigurationError,
    ProductTooLarge,
    StageFailed,
    StageMismatch,
    StageUnavailable,
)
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.mediums import ShmMedium, TCPMedium
from entrepot.stages import Bits, RemoteStage, StageServer
from entrepot.stages.protocol import REPLY, REQUEST, Request
from entrepot.tensors import TensorSpec
from tests.peer.waiting import LIMIT_S, until
from tests.unit.stages.conftest import SLOT, Serve


def echo(*args: Any, **kwargs: Any) -> Any:
    if kwargs:
        return kwargs
    return args[0] if len(args) == 1 else args


def lengths(texts: list[str]) -> Any:
    return np.array([len(text) for text in texts])


# --- what goes through ------------------------------------------------------------------


@pytest.mark.parametrize("client", ["shm", "tcp"], indirect=True)
def test_text_goes_in_and_numbers_come_out(client: Client, broker: Broker, serve: Serve) -> None:
    serve(StageServer(broker.backend, "clean", lengths))
    clean = RemoteStage(client, "clean", timeout_s=LIMIT_S)
    got = clean(["", "hej", "\u05e9\u05dc\u05d5\u05dd", "\U0001f600" * 1000])
    assert got.tolist() == [0, 3, 4, 1000]
    assert got.flags.writeable, "it is the caller's to keep"
    assert clean([]).tolist() == []


def test_arguments_and_results_keep_their_forms(
    client: Client, broker: Broker, serve: Serve
) -> None:
    serve(StageServer(broker.backend, "echo", echo))
    call = RemoteStage(client, "echo", timeout_s=LIMIT_S)
    assert call("one") == "one"
    assert call(b"one") == b"one"
    assert call("a", [b"b", b""]) == ("a", [b"b", b""])
    assert call(first="a", second=["b"]) == {"first": "a", "second": ["b"]}
    assert call(2.5).tolist() == 2.5
    assert call(np.float32(2.5)).dtype == np.float32
    half = call(Bits(np.arange(3, dtype=np.uint16), "bfloat16"))
    assert half.dtype == "bfloat16"
    assert half.array.tolist() == [0, 1, 2]


def test_text_of_any_script_and_length(client: Client, broker: Broker, serve: Serve) -> None:
    serve(StageServer(broker.backend, "echo", echo))
    call = RemoteStage(client, "echo", timeout_s=LIMIT_S)

    @settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.text(), max_size=20), st.integers(0, 2000))
    def comes_back(texts: list[str], more: int) -> None:
        texts = [*texts, "\u06de" * more]
        assert call(texts) == texts

    comes_back()


def test_as_many_servers_of_a_stage_as_one_likes(
    client: Client, broker: Broker, serve: Serve
) -> None:
    both = threading.Barrier(2)

    def slow(text: str) -> str:
        both.wait(LIMIT_S)
        return text

    for number in range(2):
        serve(StageServer(broker.backend, "slow", slow, name=f"host-{number}"))
    call = RemoteStage(client, "slow", timeout_s=LIMIT_S)
    threads = [threading.Thread(target=call, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken, "both were at work at once"


def test_what_is_kept_of_a_request_does_not_change(
    client: Client, broker: Broker, serve: Serve
) -> None:
    kept: list[Any] = []

    def keep(array: Any) -> Any:
        kept.append(array)
        array += 1
        return array

    serve(StageServer(broker.backend, "keep", keep))
    call = RemoteStage(client, "keep", timeout_s=LIMIT_S)
    for number in range(20):
        assert call(np.full(1000, number)).tolist() == [number + 1] * 1000
    assert [array[0] for array in kept] == list(range(1, 21))


def test_a_stage_describes_itself(client: Client, broker: Broker, serve: Serve) -> None:
    weights = {"b": np.ones(3), "a": np.zeros((2, 2), np.float32)}
    serve(
        StageServer(
            broker.backend, "clean", lengths, version="3", name="host-a", parameters=weights
        )
    )
    said = RemoteStage(client, "clean", timeout_s=LIMIT_S).describe()
    assert (said.stage, said.version, said.host, said.step) == ("clean", "3", "host-a", 0)
    assert len(said.parameters) == 64
    again = StageServer(broker.backend, "x", lengths, parameters=dict(reversed(weights.items())))
    other = StageServer(broker.backend, "x", lengths, parameters={**weights, "b": np.zeros(3)})
    with again, other:
        assert again._parameters == said.parameters
        assert other._parameters != said.parameters


# --- what goes wrong --------------------------------------------------------------------


def test_a_stage_that_nobody_serves_says_so_in_time(client: Client) -> None:
    client.stats()  # so that it has a broker: its time is for an answer alone
    began = time.monotonic()
    with pytest.raises(StageUnavailable, match=r"nobody answered for stage 'clean' within 0\.3 s"):
        RemoteStage(client, "clean", timeout_s=0.3)(["a"])
    assert 0.3 <= time.monotonic() - began < 5
    until(lambda: client.figures()["free"], lambda free: free == 8)


def test_a_broker_that_is_not_there_says_so_in_time() -> None:
    with (
        Client("ipc:///tmp/entrepot-nobody", ShmMedium.create(SLOT, 4)) as client,
        pytest.raises((BrokerUnavailable, StageUnavailable)),
    ):
        RemoteStage(client, "clean", timeout_s=0.2)(["a"])


def test_what_a_function_raises_is_said(client: Client, broker: Broker, serve: Serve) -> None:
    calls = []

    def fails(what: str) -> Any:
        calls.append(what)
        if what == "raise":
            raise KeyError("no such word")
        return {"none": None, "object": object(), "fine": "fine"}[what]

    serve(StageServer(broker.backend, "fails", fails, name="host-a"))
    call = RemoteStage(client, "fails", timeout_s=LIMIT_S)
    with pytest.raises(StageFailed, match="KeyError: 'no such word'") as failed:
        call("raise")
    assert (failed.value.stage, failed.value.host) == ("fails", "host-a")
    assert calls == ["raise"], "it is not tried again"
    with pytest.raises(StageFailed, match="returned None"):
        call("none")
    with pytest.raises(StageFailed, match=r"function of stage 'fails' returned .* is a object"):
        call("object")
    with pytest.raises(BadStageMessage, match="is a dict"):
        call({})
    with pytest.raises(StageFailed, match="missing 1 required positional argument"):
        call()
    assert call("fine") == "fine"


def test_what_does_not_fit_into_a_slot_is_said_with_both_sizes(
    client: Client, broker: Broker, serve: Serve
) -> None:
    serve(StageServer(broker.backend, "grow", lambda text: text * 2))
    call = RemoteStage(client, "grow", timeout_s=LIMIT_S)
    with pytest.raises(ProductTooLarge, match=rf"slots have {SLOT}; make its medium with larger"):
        call("x" * SLOT)
    with pytest.raises(ProductTooLarge, match=rf"the reply .* slots have {SLOT}"):
        call("x" * (SLOT // 2))
    assert call("x") == "xx"


def test_a_version_that_is_not_the_one_that_is_wanted(
    client: Client, broker: Broker, serve: Serve
) -> None:
    serve(StageServer(broker.backend, "echo", echo, version="2", name="host-a"))
    assert RemoteStage(client, "echo", version="2", timeout_s=LIMIT_S)("a") == "a"
    with pytest.raises(StageMismatch, match="version '1' of stage 'echo' is wanted, and host-a"):
        RemoteStage(client, "echo", version="1", timeout_s=LIMIT_S)("a")


def test_contracts_that_do_not_fit(broker: Broker, serve: Serve) -> None:
    words = Contract([TensorSpec("ids", [32], "int64")])
    serve(StageServer(broker.backend, "echo", echo, contract=words))
    for contract, agrees in ((words, True), (None, True), ("shorter", False)):
        mine = Contract([TensorSpec("ids", [16], "int64")]) if contract == "shorter" else contract
        with Client(broker.frontend, ShmMedium.create(SLOT, 4), contract=mine) as client:
            call = RemoteStage(client, "echo", timeout_s=LIMIT_S)
            if agrees:
                assert call("a") == "a"
                continue
            with pytest.raises(StageMismatch, match=r"do not agree: .*shape \[16\].*\[32\]"):
                call("a")


def test_a_release_that_speaks_otherwise(client: Client, broker: Broker, serve: Serve) -> None:
    serve(StageServer(broker.backend, "echo", echo))
    request = bytearray(REQUEST.encode(Request(stage="echo", verb="forward")).tobytes())
    request[14] = 9
    with client.order("stage/echo/forward", input=request).result(LIMIT_S) as product:
        reply, _ = REPLY.decode(product.data)
    assert (reply.code, "speaks version 9" in reply.error) == ("stage_mismatch", True)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (None, "without an input"),
        (b"", "0 bytes are no message"),
        (b"x" * 1000, "does not begin as one"),
        (REQUEST.encode(Request(stage="other", verb="forward")).tobytes(), "of stage 'other'"),
        (REQUEST.encode(Request(stage="echo", verb="describe")).tobytes(), "for 'describe'"),
    ],
)
def test_a_request_that_is_none_is_answered_in_words(
    client: Client, broker: Broker, serve: Serve, request_: bytes | None, said: str
) -> None:
    serve(StageServer(broker.backend, "echo", echo))
    with client.order("stage/echo/forward", input=request_).result(LIMIT_S) as product:
        reply, _ = REPLY.decode(product.data)
    assert reply.code == "stage_message"
    assert said in reply.error


def test_arguments_that_cannot_be(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="a stage's name"):
        RemoteStage(client, "a/b")
    with pytest.raises(ConfigurationError, match="timeout_s"):
        RemoteStage(client, "a", timeout_s=0)
    with pytest.raises(ConfigurationError, match="must be callable"):
        StageServer("tcp://127.0.0.1:1", "a", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="client must be of type Client"):
        RemoteStage("tcp://127.0.0.1:1", "a")  # type: ignore[arg-type]


def test_a_server_serves_once(broker: Broker) -> None:
    with StageServer(broker.backend, "a", echo) as server:
        server.start()
        server.wait_registered(LIMIT_S)
        with pytest.raises(Closed, match="started before"):
            server.start()


def test_a_server_waits_for_a_broker_and_says_when_there_is_none() -> None:
    with StageServer("ipc:///tmp/entrepot-nobody", "a", echo) as server:
        server.start()
        with pytest.raises(BrokerUnavailable):
            server.wait_registered(0.2)


# --- what comes, and whose it is --------------------------------------------------------


@pytest.mark.parametrize("kind", ["shm", "tcp"])
def test_what_came_is_the_callers_also_when_more_comes(
    broker: Broker, serve: Serve, kind: str
) -> None:
    """Replies of one size, of others, and of several values, all of which are kept."""

    def fill(number: int, several: bool) -> Any:
        large = np.full(20_000 + number // 10, number, np.int64)
        return {"large": large, "little": np.full(3, -number)} if several else large

    serve(StageServer(broker.backend, "fill", fill))
    medium = (ShmMedium if kind == "shm" else TCPMedium).create(1 << 18, 4)
    came: list[Any] = []
    with Client(broker.frontend, medium) as client:
        one, several = (RemoteStage(client, "fill", timeout_s=LIMIT_S) for _ in range(2))
        for number in range(40):
            came.append(one(number, False))
            both = several(number, True)
            came.append(both["large"])
            assert both["little"].tolist() == [-number] * 3
            # What is little does not keep the memory of what is large.
            assert _memory_of(both["little"]) < 1_000
            if number % 3:
                del came[0]
    # What has the size of the last one is where it arrived, in the memory of a whole reply.
    assert any(_memory_of(each) > each.nbytes for each in came)
    for each in came:
        number = int(each[0])
        assert each.tolist() == [number] * (20_000 + number // 10)
        each += 1  # it is its own
    for each in came:
        assert each.tolist() == [each[0]] * len(each)


def _memory_of(array: Any) -> int:
    """Bytes of what it is a window on."""
    base = array.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, bytearray | ctypes.Array):
        return len(base)
    return int(array.nbytes) if base is None else _memory_of(base)
