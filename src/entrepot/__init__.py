"""Entrepot: a market for training data and a study without a server."""

__version__ = "0.1.0"
