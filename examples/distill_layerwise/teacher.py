"""Serves every layer, by one pattern; which one is run to is the order's.

entrepot supplier --serve examples.distill_layerwise.teacher:make --product 'layer_\\d+' --batch 16
"""

from __future__ import annotations

from entrepot.training import Teacher
from examples.distill_layer.model import Texts, contract_of, taught

_taught = taught()
_module = rf"{_taught.layers}.\1"

make = Teacher(
    _taught.model,
    contract_of(_taught.width),
    Texts(),
    names={r"layer_(\d+)": f"inputs[{_module}]|outputs[{_module}]"},
)
