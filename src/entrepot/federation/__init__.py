"""Federated training: clients that never speak to each other leave each round with their mean."""

from entrepot.federation.fedavg import State, fedavg
from entrepot.federation.gather import gather

__all__ = ["State", "fedavg", "gather"]
