"""A cut model is the whole model: forwards, gradients and weights, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from entrepot.errors import (
    BadStageMessage,
    NoGradient,
)
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.stages import (
    CutOptimizer,
    RemoteStage,
    StageServer,
    TorchStageServer,
)
from tests.unit.stages.conftest import Serve
from tests.unit.stages.cuts import (
    CONFIG,
    WORDS,
    Double,
    activations,
    batches,
    build,
    build_front,
    build_head,
    build_middle,
    far,
    same_weights,
    stage_of,
    train,
)

# --- bit by bit -------------------------------------------------------------------------


@pytest.mark.parametrize("client", ["shm", "tcp"], indirect=True)
def test_the_cut_model_trains_as_the_whole_one_does(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server = serve(TorchStageServer(broker.backend, "embed", build))
    embed, head = stage_of(client), build_head()
    optimizer = CutOptimizer([torch.optim.Adam(head.parameters(), 0.05), embed])
    losses = train(nn.Sequential(embed, head), optimizer, batches(10))

    (front, its_own), whole_head = build(CONFIG), build_head()
    both = CutOptimizer([its_own, torch.optim.Adam(whole_head.parameters(), 0.05)])
    assert losses == train(nn.Sequential(front, whole_head), both, batches(10))
    assert same_weights(head, whole_head)
    assert same_weights(far(server, embed), front)
    assert embed.steps == 10
    assert losses[-1] < losses[0]


def test_gradients_flow_through_a_stage_in_the_middle(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server = serve(TorchStageServer(broker.backend, "middle", build_middle))
    middle, front, head = stage_of(client, "middle"), build_front(), build_head()
    near = [*front.parameters(), *head.parameters()]
    optimizer = CutOptimizer([torch.optim.Adam(near, 0.05), middle])
    losses = train(nn.Sequential(front, middle, head), optimizer, activations(10))

    (whole_middle, its_own), whole_front, whole_head = (
        build_middle(CONFIG),
        build_front(),
        build_head(),
    )
    theirs = [*whole_front.parameters(), *whole_head.parameters()]
    both = CutOptimizer([its_own, torch.optim.Adam(theirs, 0.05)])
    whole = nn.Sequential(whole_front, whole_middle, whole_head)
    assert losses == train(whole, both, activations(10))
    assert same_weights(front, whole_front)
    assert not same_weights(front, build_front()), "it has learned"
    assert same_weights(far(server, middle), whole_middle)


def test_two_stages_in_a_row_on_two_servers(client: Client, broker: Broker, serve: Serve) -> None:
    first = serve(TorchStageServer(broker.backend, "embed", build))
    second = serve(TorchStageServer(broker.backend, "middle", build_middle))
    embed, middle, head = stage_of(client), stage_of(client, "middle"), build_head()
    near = torch.optim.Adam(head.parameters(), 0.05)
    losses = train(
        nn.Sequential(embed, middle, head), CutOptimizer([near, embed, middle]), batches(5)
    )
    (whole, one), (whole_middle, two), whole_head = (
        build(CONFIG),
        build_middle(CONFIG),
        build_head(),
    )
    three = torch.optim.Adam(whole_head.parameters(), 0.05)
    model = nn.Sequential(whole, whole_middle, whole_head)
    assert losses == train(model, CutOptimizer([one, two, three]), batches(5))
    assert same_weights(far(first, embed), whole)
    assert same_weights(far(second, middle), whole_middle)


def test_accumulation_is_as_many_forwards_and_backwards_as_one_likes(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server = serve(TorchStageServer(broker.backend, "embed", build))
    embed, head = stage_of(client), build_head()
    (whole, its_own), whole_head = build(CONFIG), build_head()

    def rounds(front: nn.Module, back: nn.Module, optimizer: Any) -> None:
        criterion = nn.functional.cross_entropy
        data = list(batches(12))
        for number in range(2):
            optimizer.zero_grad()
            some = data[number * 6 : number * 6 + 6]
            for x, y in some[:3]:  # one after the other
                criterion(back(front(x)), y).backward()  # type: ignore[no-untyped-call]
            losses = [criterion(back(front(x)), y) for x, y in some[3:]]
            for loss in (losses[1], losses[2], losses[0]):  # all forwards first, and any order
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        optimizer.step()  # without zero_grad, gradients are still there

    rounds(embed, head, CutOptimizer([embed, torch.optim.SGD(head.parameters(), 0.1)]))
    theirs = torch.optim.SGD(whole_head.parameters(), 0.1)
    rounds(whole, whole_head, CutOptimizer([its_own, theirs]))
    assert same_weights(far(server, embed), whole)
    assert same_weights(head, whole_head)


def test_zero_grad_between_forward_and_backward(
    client: Client, broker: Broker, serve: Serve
) -> None:
    """As many write it: loss, zero_grad, backward, step."""
    server = serve(TorchStageServer(broker.backend, "embed", build))
    embed = stage_of(client)
    whole, its_own = build(CONFIG)
    for front, optimizer in ((embed, embed), (whole, its_own)):
        for x, _ in batches(3):
            loss = front(x).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert same_weights(far(server, embed), whole)


def test_a_stage_of_which_two_make_use(client: Client, broker: Broker, serve: Serve) -> None:
    """Its output goes two ways, it is called twice, and one input is given twice: all is summed."""
    server = serve(TorchStageServer(broker.backend, "middle", build_middle))
    middle = stage_of(client, "middle")
    whole, its_own = build_middle(CONFIG)
    found: list[Any] = []
    for stage, optimizer in ((middle, middle), (whole, its_own)):
        x = torch.ones(3, 4, requires_grad=True)
        y = stage(x)
        z = stage(x * 2)
        (y.sum() + y.square().sum() + (y * z).sum()).backward()
        optimizer.step()
        found.append(x.grad)
    assert torch.equal(*found)
    assert same_weights(far(server, middle), whole)


# --- what goes through ------------------------------------------------------------------


class Odd(nn.Module):
    """Several inputs by place and name; several outputs, not all of them to be learned through."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, a: torch.Tensor, texts: list[str], *, b: torch.Tensor) -> dict[str, Any]:
        return {
            "sum": a * self.weight + b,
            "count": torch.tensor([len(text) for text in texts]),
            "alone": self.weight * 2,
            "texts": [text.upper() for text in texts],
        }


def test_several_inputs_and_outputs_and_text_among_them(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server = serve(TorchStageServer(broker.backend, "odd", lambda config: Odd()))
    odd = stage_of(client, "odd")
    a = torch.arange(3.0, requires_grad=True)
    b = torch.arange(3.0)
    out = odd(a, ["x", "\u05e9\u05dc"], b=b)
    assert out["texts"] == ["X", "\u05e9\u05dc"]
    assert out["count"].tolist() == [1, 2]
    assert not out["count"].requires_grad
    out["sum"].sum().backward()
    assert a.grad is not None
    assert a.grad.tolist() == [1.0, 1.0, 1.0]
    assert b.grad is None
    module = far(server, odd)
    assert isinstance(module, Odd)
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [0.0, 1.0, 2.0], "`alone` was not used"


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_activations_of_every_dtype(
    client: Client, broker: Broker, serve: Serve, dtype: torch.dtype
) -> None:
    serve(TorchStageServer(broker.backend, "double", lambda config: Double()))
    x = torch.randn(5, 3).to(dtype).requires_grad_(True)
    y = stage_of(client, "double")(x)
    assert y.dtype == dtype
    assert torch.equal(y, x * 2)
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert torch.equal(x.grad, torch.full_like(x, 2))


def test_tensors_that_lie_apart_are_sent_as_they_read(
    client: Client, broker: Broker, serve: Serve
) -> None:
    serve(TorchStageServer(broker.backend, "double", lambda config: Double()))
    double = stage_of(client, "double")
    x = torch.arange(24.0).reshape(4, 6).t()[::2]
    assert torch.equal(double(x), x * 2)
    assert torch.equal(double(torch.tensor(3.0)), torch.tensor(6.0))
    assert double(torch.zeros(0, 3)).shape == (0, 3)
    with pytest.raises(BadStageMessage, match="complex64"):
        double(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(BadStageMessage, match="sparse"):
        double(torch.eye(2).to_sparse())


def test_what_a_stage_without_torch_gives_goes_in(
    client: Client, broker: Broker, serve: Serve
) -> None:
    """As in the documentation: text, words, activations, loss."""

    def clean(texts: list[str]) -> Any:
        return np.array([[ord(letter) % WORDS for letter in text[:5].ljust(5)] for text in texts])

    serve(StageServer(broker.backend, "clean", clean))
    serve(TorchStageServer(broker.backend, "embed", build))
    tokens, embed, head = RemoteStage(client, "clean"), stage_of(client), build_head()
    out = nn.Sequential(embed, head)(tokens(["Free entry!", "see you"]))
    out.sum().backward()
    whole = nn.Sequential(build(CONFIG)[0], build_head())
    words = torch.from_numpy(clean(["Free entry!", "see you"]))
    assert torch.equal(out, whole(words))


# --- what keeps nothing -----------------------------------------------------------------


def test_eval_and_no_grad_keep_nothing(client: Client, broker: Broker, serve: Serve) -> None:
    server = serve(TorchStageServer(broker.backend, "middle", build_middle))
    middle = stage_of(client, "middle")
    x = torch.ones(2, 4, requires_grad=True)
    assert middle(x).requires_grad
    run = server._runs[middle._link.begin]  # type: ignore[attr-defined]
    assert len(run.held) == 1
    middle.zero_grad()
    middle.step()
    assert len(run.held) == 0, "a step lets go of what was before it"
    with torch.no_grad():
        assert not middle(x).requires_grad
    middle.eval()
    y = middle(x)
    assert not middle(x.detach()).requires_grad
    assert len(run.held) == 0
    with pytest.raises(NoGradient, match=r"was in eval\(\)"):
        y.sum().backward()
    assert not run.module.training
    middle.train()
    middle(x)
    assert run.module.training


def test_dropout_and_statistics_know_the_mode(client: Client, broker: Broker, serve: Serve) -> None:
    def build_noisy(config: dict[str, Any]) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))

    server = serve(TorchStageServer(broker.backend, "noisy", build_noisy))
    noisy = stage_of(client, "noisy")
    x = torch.randn(8, 4)
    with torch.no_grad():
        assert (noisy(x) == 0).any()
        counted = far(server, noisy)[0].num_batches_tracked  # type: ignore[index]
        assert counted == 1, "statistics are kept under no_grad, as in one process"
        noisy.eval()
        assert torch.equal(noisy(x), noisy(x))
    assert counted == 1


def test_random_numbers_are_each_runs_own(client: Client, broker: Broker, serve: Serve) -> None:
    """What dropout draws depends on the run, and on nothing that is beside it."""
    serve(TorchStageServer(broker.backend, "drop", lambda config: nn.Dropout(0.5)))
    x = torch.ones(64)
    alone = stage_of(client, "drop", run="a")
    expected = [alone(x) for _ in range(4)]
    again, other = stage_of(client, "drop", run="a"), stage_of(client, "drop", run="b")
    torch.manual_seed(1)
    mine = torch.rand(3)
    torch.manual_seed(1)
    between = [(again(x), other(x)) for _ in range(4)]
    assert torch.equal(torch.rand(3), mine), "nor are this process's numbers drawn from"
    for one, (two, three) in zip(expected, between, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(two, three)


def test_a_gradient_that_comes_twice_or_too_late(
    client: Client, broker: Broker, serve: Serve
) -> None:
    server = serve(TorchStageServer(broker.backend, "middle", build_middle, max_forwards=2))
    middle = stage_of(client, "middle")
    x = torch.ones(2, 4)
    loss = middle(x).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(NoGradient, match="its gradient has come before"):
        loss.backward()
    three = [middle(x).sum() for _ in range(3)]
    assert len(server._runs[middle._link.begin].held) == 2  # type: ignore[attr-defined]
    three[2].backward()
    with pytest.raises(NoGradient, match="or 2 forwards came after it"):
        three[0].backward()
    middle.step()
    with pytest.raises(NoGradient, match="a step was applied since"):
        three[1].backward()
    middle(x).sum().backward()
    assert middle.step() == 2, "it goes on"


# --- hyper-parameters -------------------------------------------------------------------


def test_hyper_parameters_reach_the_far_side(client: Client, broker: Broker, serve: Serve) -> None:
    serve(TorchStageServer(broker.backend, "embed", build))

    def last(lr: float) -> float:
        embed, head = stage_of(client, run=f"lr-{lr}", lr=lr), build_head()
        optimizer = CutOptimizer([torch.optim.Adam(head.parameters(), 0.01), embed])
        return train(nn.Sequential(embed, head), optimizer, iter([*batches(1)] * 20))[-1]

    assert last(0.05) < 0.5 * last(0.0)
