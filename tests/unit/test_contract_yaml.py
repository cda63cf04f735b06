"""Contracts in YAML: what is taken, and what is said of the rest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from entrepot.contract import Contract
from entrepot.errors import ContractError
from entrepot.tensors import TensorSpec

XY = Contract([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (), "int64")])

YAML = """
_target_: softs.BatchConfig
_convert_: all
specs:
  - {name: x, shape: [2, 3], dtype: float32}
  - name: y
    shape: []
    dtype: int64
    _comment_: the label
"""


def test_yaml_as_the_peers_users_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(YAML)
    for source in (YAML, file, str(file)):
        assert Contract.from_yaml(source) == XY
    assert Contract.from_yaml("{specs: []}") == Contract([])


def test_hydra_calls_the_class_with_mappings() -> None:
    said: dict[str, Any] = {"specs": [spec.to_dict() for spec in XY.specs], "align": 8}
    assert Contract(**said) == Contract(XY.specs, align=8)


def test_yaml_with_ragged_tensors_and_alignment() -> None:
    contract = Contract.from_yaml(
        "align: 64\nspecs: [{name: x, shape: [-1, 4], dtype: int16, max_ragged: 9}]\n"
    )
    assert contract == Contract([TensorSpec("x", (-1, 4), "int16", 9)], align=64)
    assert Contract.from_dict(contract.to_dict()) == contract


def test_yaml_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"cannot read .*missing\.yaml"):
        Contract.from_yaml(tmp_path / "missing.yaml")
    with pytest.raises(ContractError, match="is not YAML"):
        Contract.from_yaml("{specs: [}")
    with pytest.raises(ContractError, match="is not YAML"):
        Contract.from_yaml("specs: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ContractError, match="mapping, got str"):
        Contract.from_yaml("just\nwords\n")
    for text in ("[" * 10_000 + "\n", "specs: 2020-13-45\n"):
        with pytest.raises(ContractError, match="is not YAML"):
            Contract.from_yaml(text)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ContractError, match="cannot read"):
        Contract.from_yaml(tmp_path / "binary")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1\n- 2\n", ": a contract is a mapping, got list"),
        ("specs: 3\n", ": specs are a list of tensors, got int"),
        ("specs:\n  x: {shape: []}\n", "specs are a list of tensors, got dict"),
        ("specs: []\nalgin: 3\n", "a contract has no algin; it has specs, align"),
        ("align: 3\nspecs: []\n", "align is 3; it is a power of two"),
        ("\n\n", "a contract is a mapping, got NoneType"),
        (
            "specs:\n- {name: x, shape: [], dtype: int8}\n- {name: y, shape: [a], dtype: int8}\n",
            r"line 3: tensor 'y' has shape \['a'\]; sizes are whole numbers",
        ),
        ("specs:\n\n- name: x\n  shape: []\n", r"line 3: the spec .* lacks dtype; it reads"),
        ("specs:\n- {name: x, shape: [], dtype: half}\n", "line 2: .*'half'; known are float64"),
        ("specs:\n- {name: x, shape: [-1], dtype: bool}\n", "line 2: .*give the most"),
        ("specs:\n- 7\n", "line 2: a tensor's spec is a mapping, got int"),
        ("specs: &a\n- *a\n", "line 1: a tensor's spec is a mapping, got list"),
        ("specs:\n- {name: x, shape: [1, dtype\n", "is not YAML: .*line 3"),
    ],
)
def test_yaml_is_refused_with_the_place_and_what_was_expected(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(text)
    for source, where in ((text, ""), (file, "contract.yaml.*")):
        with pytest.raises(ContractError, match=re.compile(f"{where}{said}", re.DOTALL)):
            Contract.from_yaml(source)
