"""Teachers on a market: whole lines, what fails, and two ranks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from entrepot import Broker, Client, Contract, ShmMedium
from entrepot.errors import OrderFailed, Refused
from entrepot.tensors import TensorSpec
from entrepot.training import Teacher
from tests.integration.cli_terminals import Terminals
from tests.unit.capture.models import WIDTH, Transformer, made
from tests.unit.training.teachers import (
    BATCHES,
    LENGTH,
    NAMES,
    SAMPLES,
    XY,
    Y,
    expected,
    is_row,
    model,
)

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def broker() -> Iterator[Broker]:
    free = "tcp://127.0.0.1:0"
    with Broker(free, free) as broker:
        yield broker


def client_of(endpoint: str, contract: Contract, slots: int = 16) -> Client:
    medium = ShmMedium.create(contract.nbytes, slots)
    return Client(endpoint, medium, contract=contract, timeout_s=LIMIT_S)


@pytest.mark.parametrize("batch", [None, 1, 8])
def test_every_layer_by_one_pattern(broker: Broker, batch: int | None) -> None:
    """Switching from one to the next; each has every row of every batch, in order."""
    teacher = Teacher(model(), XY, BATCHES, names=NAMES)
    with (
        teacher.supplier(broker.backend, batch=batch).start(),
        client_of(broker.frontend, XY) as client,
    ):
        for layer in range(3):
            rows = []
            for product in client.stream(f"layer_{layer}", count=4, timeout_s=LIMIT_S):
                rows.append(XY.decode(product, framework="torch"))
            assert all(is_row(row, layer, BATCHES[0], at) for at, row in enumerate(rows))


def test_orders_that_come_together_are_one_forward(broker: Broker) -> None:
    teacher = Teacher(model(), Y, lambda indices: SAMPLES[indices], names=NAMES)
    with client_of(broker.frontend, Y) as client:
        orders = client.orders([f"train/{number}/1" for number in range(16)])
        with teacher.supplier(broker.backend, batch=16).start():
            for number, order in enumerate(orders):
                with order.result(LIMIT_S) as product:
                    got = Y.decode_one(product, "y", framework="torch")
                    whole = expected(1, SAMPLES[[number]])[1][0]
                    assert torch.allclose(got, whole, atol=1e-5)
    assert teacher.forwards == 1


def test_what_cannot_be_made_fails_and_the_teacher_lives_on(broker: Broker) -> None:
    class Broken(Transformer):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            super().forward(tokens)
            raise ArithmeticError("the head fell off")

    teacher = Teacher(made(Broken), Y, BATCHES)
    with (
        teacher.supplier(broker.backend, batch=4).start() as supplier,
        client_of(broker.frontend, Y) as client,
    ):
        with pytest.raises(OrderFailed, match=r"UnknownModule.*nearest are 'layers.1', ") as failed:
            client.order("outputs[layer.1]").result(LIMIT_S)
        assert failed.value.reason == "attempts"
        torn = Teacher(made(Broken), Y, BATCHES, early_exit=False, names={"torn": "outputs[head]"})
        with (
            torn.supplier(broker.backend, batch=4).start(),
            pytest.raises(OrderFailed, match="ArithmeticError: the head fell off"),
        ):
            client.order("torn").result(LIMIT_S)
        with client.order("outputs[layers.2]").result(LIMIT_S) as product:
            assert len(product.data) == Y.nbytes
        assert supplier.served >= 1


def test_another_contract_is_told_with_the_difference(broker: Broker) -> None:
    teacher = Teacher(model(), Y, BATCHES)
    ours = Contract([TensorSpec("y", (LENGTH, 2 * WIDTH), "bfloat16")])
    with (
        teacher.supplier(broker.backend).start() as supplier,
        client_of(broker.frontend, ours) as client,
    ):
        supplier.wait_registered(LIMIT_S)
        with pytest.raises(Refused, match=r"dtype bfloat16 here, float32 there; shape \[6, 32\]"):
            client.order("outputs[layers.0]").result(LIMIT_S)


MINE = """
import torch
from tests.unit.training.teachers import BATCHES, NAMES, XY, model
from entrepot.training import Teacher

torch.set_num_threads(1)
make = Teacher(model(), XY, BATCHES, names=NAMES)
"""


def test_the_command_line_serves_a_teacher(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its contract, which the command line does not name."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (terminals.folder / "mine.py").write_text(MINE)
    terminals.broker()
    terminals.supplier("make", r"layer_\d+", more=("--batch", "8"))
    with client_of(terminals.frontend, XY) as client:
        for layer in (2, 0):
            with client.order(f"layer_{layer}").result(LIMIT_S) as product:
                assert is_row(XY.decode(product, framework="torch"), layer, BATCHES[0], 0)
    with client_of(terminals.frontend, Y) as client, pytest.raises(Refused, match="only there"):
        client.order("layer_1").result(LIMIT_S)


# --- ranks ------------------------------------------------------------------------------


class Buffered(Transformer):
    """With a buffer, which DistributedDataParallel has all ranks exchange in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))


def _rank(rank: int, backend: str, meeting: str, over: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        inner = made(Buffered)
        assert isinstance(inner, Buffered)
        ranks = DistributedDataParallel(inner)
        names = {rf"rank{rank}/layer_(\d+)": r"inputs[layers.\1]|outputs[layers.\1]"}
        teacher = Teacher(ranks, XY, BATCHES, names=names, keep=0)
        with teacher.supplier(backend, name=f"rank{rank}").start():
            over.wait()
        ran, inner.ran = inner.ran, 0
        # Stopping early must leave no exchange of gradients behind that somebody waits for.
        inner.train()
        optimizer = torch.optim.SGD(ranks.parameters(), 0.1)
        tokens = BATCHES[rank]
        loss = nn.functional.cross_entropy(ranks(tokens).flatten(0, 1), tokens.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        weights = torch.cat([p.detach().flatten() for p in inner.parameters()])
        answers.put((rank, ran, teacher.forwards, float(weights.double().sum())))
    finally:
        dist.destroy_process_group()


def test_ranks_stop_at_the_same_module_and_do_not_wait_for_each_other(
    broker: Broker, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    answers, over = context.Queue(), context.Event()
    ranks = [
        context.Process(
            target=_rank, args=(rank, broker.backend, str(tmp_path / "meeting"), over, answers)
        )
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    asked = (1, 0, 2, 1)
    with client_of(broker.frontend, XY) as client:
        products: dict[int, list[bytes]] = {}
        for rank in range(2):  # first all of one, while the other has nothing to do
            for layer in asked:
                with client.order(f"rank{rank}/layer_{layer}").result(LIMIT_S) as product:
                    products.setdefault(rank, []).append(bytes(product.data))
    over.set()
    got = sorted(answers.get(timeout=LIMIT_S) for _ in ranks)
    for process in ranks:
        process.join()
        assert process.exitcode == 0
        process.close()
    answers.close()
    answers.join_thread()
    assert products[0] == products[1]
    assert [(ran, forwards) for _, ran, forwards, _ in got] == [(sum(asked), len(asked))] * 2
    assert got[0][3] == got[1][3]
