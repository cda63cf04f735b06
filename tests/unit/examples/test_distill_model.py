"""The examples' model: small ones that are built here, and Hugging Face's by name."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from entrepot.errors import ConfigurationError, MissingExtra
from entrepot.training import Teacher
from examples.distill_layer import model as example
from examples.distill_layer.model import LENGTH, ROWS, Texts, contract_of, shape_of, taught

WIDTH = 8


class Layer(nn.Module):
    """As theirs: keyword arguments, and a tuple for an output."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: torch.Tensor, *, mask: Any = None) -> tuple[torch.Tensor]:
        return (hidden_states + self.mlp(hidden_states),)


class Theirs(nn.Module):
    """What ``from_pretrained`` gives, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=WIDTH, num_hidden_layers=2)
        self.embed = nn.Embedding(50, WIDTH)
        self.heads = nn.ModuleList([nn.Linear(WIDTH, 1)])
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(Layer() for _ in range(2))
        self.to(torch.bfloat16)

    def forward(self, *, input_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(input_ids)
        for layer in self.decoder.get_submodule("layers").children():
            (hidden,) = layer(hidden_states=hidden, mask=None)
        return hidden


@pytest.fixture
def _transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives(value: Any) -> Any:
        def from_pretrained(name: str) -> Any:
            assert name == "some/model"
            return value

        return SimpleNamespace(from_pretrained=from_pretrained)

    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 50 for letter in text]}

    there = SimpleNamespace(
        AutoModel=gives(Theirs()),
        AutoConfig=gives(Theirs().config),
        AutoTokenizer=gives(tokenizer),
    )
    monkeypatch.setitem(sys.modules, "transformers", there)


@pytest.mark.usefixtures("_transformers")
def test_a_model_by_name_is_taught_from_by_the_same_scripts() -> None:
    found = taught("some/model")
    assert (found.layers, found.depth, found.width) == ("decoder.layers", 2, WIDTH)
    assert shape_of("some/model") == (WIDTH, 2)
    contract = contract_of(found.width)
    module = "decoder.layers.1"
    teacher = Teacher(
        found.model,
        contract,
        Texts("some/model"),
        names={"layer_1": f"inputs[{module}]|outputs[{module}]"},
    )
    product = contract.decode(teacher.product("layer_1"), framework="torch")
    with torch.no_grad():
        (y,) = found.model.get_submodule(module)(product["x"].bfloat16())
    assert torch.allclose(product["y"], y.float(), atol=0.05)


def test_without_transformers_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (taught, shape_of, lambda name: next(iter(Texts(name)))):
        with pytest.raises(MissingExtra, match="pip install transformers"):
            call("some/model")


def test_a_model_without_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = SimpleNamespace(from_pretrained=lambda name: nn.Linear(2, 2))
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoModel=flat))
    with pytest.raises(ConfigurationError, match="no list of layers"):
        taught("some/model")


def test_the_small_model_is_the_same_each_time() -> None:
    first, second = taught(""), taught("")
    assert (first.width, first.depth) == shape_of("")
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )
    batch = next(iter(Texts("")))
    assert batch["tokens"].shape == (ROWS, LENGTH)
    assert first.model(**batch).shape == (ROWS, LENGTH, 256)
    assert example.MODEL == ""
