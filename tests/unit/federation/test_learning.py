"""What rounds are for: three clients who each saw a corner know the whole together."""

from __future__ import annotations

import threading

import torch

from entrepot.federation import gather
from entrepot.store.memory import MemoryStore

CLIENTS = 3
ROUNDS = 12
EPOCHS = 3


def corner(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around one of three corners, and what one teacher, the same for all, says of them."""
    random = torch.Generator().manual_seed(client)
    centre = torch.tensor([[3.0, 0.0], [-1.5, 2.6], [-1.5, -2.6]])[client]
    points = centre + torch.randn(64, 2, generator=random)
    return points, points @ torch.tensor([[1.0], [-2.0]]) + 0.5


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def train(net: torch.nn.Module, points: torch.Tensor, wanted: torch.Tensor) -> None:
    descent = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        descent.zero_grad()
        torch.nn.functional.mse_loss(net(points), wanted).backward()  # type: ignore[no-untyped-call]
        descent.step()


def loss_on_all(net: torch.nn.Module) -> float:
    corners = [corner(client) for client in range(CLIENTS)]
    points = torch.cat([points for points, _ in corners])
    wanted = torch.cat([wanted for _, wanted in corners])
    with torch.no_grad():
        return float(torch.nn.functional.mse_loss(net(points), wanted))


def test_three_who_each_saw_a_corner_do_better_together_than_any_alone() -> None:
    torch.set_num_threads(1)
    store = MemoryStore()
    together = [network() for _ in range(CLIENTS)]

    def client(mine: int) -> None:
        net = together[mine]
        for number in range(ROUNDS):
            train(net, *corner(mine))
            mean = gather(
                store.view(),
                net.state_dict(),
                run="corners",
                round=number,
                clients=CLIENTS,
                mine=mine,
                size=64,
                within=60.0,
            )
            net.load_state_dict(mean)

    threads = [threading.Thread(target=client, args=(mine,)) for mine in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    alone = [network() for _ in range(CLIENTS)]
    for mine, net in enumerate(alone):
        for _ in range(ROUNDS):
            train(net, *corner(mine))
    for net in together[1:]:
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, together[0].state_dict()[name]), "all are the same"
    assert loss_on_all(together[0]) < min(map(loss_on_all, alone)) / 2
