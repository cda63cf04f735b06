"""Serves one layer: what it is given, and what it makes of it.

entrepot supplier --serve examples.distill_layer.teacher:make --product layer_1
"""

from __future__ import annotations

from entrepot.training import Teacher
from examples.distill_layer.model import Texts, contract_of, taught

LAYER = 1
PRODUCT = f"layer_{LAYER}"

_taught = taught()
_module = f"{_taught.layers}.{LAYER}"

make = Teacher(
    _taught.model,
    contract_of(_taught.width),
    Texts(),
    names={PRODUCT: f"inputs[{_module}]|outputs[{_module}]"},
)
