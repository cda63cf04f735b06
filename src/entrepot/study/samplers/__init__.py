"""Where to look: samplers, one file a method."""

from entrepot.study.samplers.base import History, Sampler

__all__ = ["History", "Sampler"]
