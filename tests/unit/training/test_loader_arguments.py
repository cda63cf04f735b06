"""A loader's arguments are refused where they cannot be, by name, and before anything is made."""

from __future__ import annotations

import io
import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from entrepot.contract import Contract
from entrepot.errors import ConfigurationError, StateMismatch
from entrepot.mediums import FilesystemMedium, ShmMedium, TCPMedium
from entrepot.tensors import TensorSpec
from entrepot.training import SoftDataLoader
from entrepot.training.loader_progress import Bar

CONTRACT = Contract([TensorSpec("x", (256,), "uint8")])
NOBODY = "tcp://127.0.0.1:1"


def loader(product_id: Any = None, **options: Any) -> SoftDataLoader:
    return SoftDataLoader(NOBODY, CONTRACT, product_id, **options)


def indexed(**options: Any) -> SoftDataLoader:
    return loader(**({"products": "train/{index}", "length": 10} | options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give the product_id of a stream, or products and length"),
        ({"product_id": "a", "products": "b{index}"}, "one of the two"),
        ({"product_id": 3}, "product_id is a str, got 3"),
        ({"product_id": "a", "shuffle": True}, "a stream has no order to shuffle"),
        ({"products": "train/{index}"}, "say how many with length"),
        ({"products": "train", "length": 3}, r"it needs an \{index\} in it"),
        ({"products": 7, "length": 3}, "products is a function, got 7"),
        ({"product_id": "a", "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"product_id": "a", "prefetch": 0}, "prefetch must be at least 1, got 0"),
        ({"product_id": "a", "num_workers": -1}, "num_workers must be at least 0"),
        ({"product_id": "a", "timeout_s": 0}, "timeout_s is in seconds"),
        ({"product_id": "a", "collate_fn": list}, "say of how many with batch_size"),
        ({"product_id": "a", "framework": "jax"}, "framework is 'torch' or 'numpy', got 'jax'"),
        ({"product_id": "a", "medium": "rdma"}, "medium is one of shm, file, tcp"),
        ({"product_id": "a", "rank": 1}, "give both, or neither"),
        ({"product_id": "a", "rank": 2, "world": 2}, "rank must be 0 to 1, got 2"),
        ({"product_id": "a", "seed": -1}, "seed must be 0 to"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        loader(**options)


def test_a_medium_that_is_made_already_is_refused_with_the_remedy() -> None:
    with (
        ShmMedium.create(1, 1) as medium,
        pytest.raises(ConfigurationError, match=r"give what makes one, such as ShmMedium\.create"),
    ):
        loader("a", medium=medium)


def test_a_contract_is_one() -> None:
    with pytest.raises(ConfigurationError, match="contract must be of type Contract"):
        SoftDataLoader(NOBODY, "contract", "a")  # type: ignore[arg-type]


def test_mediums_are_of_the_contracts_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTREPOT_CLIENT__FILE_ROOT", str(tmp_path))
    wanted: dict[Any, type] = {
        None: ShmMedium,
        "shm": ShmMedium,
        "file": FilesystemMedium,
        "tcp": TCPMedium,
        partial(TCPMedium.create, advertise="here"): TCPMedium,
    }
    for medium, kind in wanted.items():
        setup = loader("a", medium=medium, prefetch=3)._given.setup()
        with setup.medium(CONTRACT.nbytes, setup.slots) as made:
            assert type(made) is kind
            assert (made.slot_nbytes, made.slots) == (256, 5)


@pytest.mark.parametrize(
    ("nbytes", "batch_size", "prefetch"),
    [(1, None, 64), (1 << 20, None, 32), (1 << 30, None, 4), (1 << 20, 100, 100), (1, 8, 64)],
)
def test_as_much_is_ordered_ahead_as_memory_is_worth(
    nbytes: int, batch_size: int | None, prefetch: int
) -> None:
    contract = Contract([TensorSpec("x", (nbytes,), "uint8")])
    made = SoftDataLoader(NOBODY, contract, "a", batch_size=batch_size)
    assert made._given.setup().prefetch == prefetch


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, 10),
        ({"batch_size": 4}, 3),
        ({"batch_size": 4, "drop_last": True}, 2),
        ({"batch_size": 4, "rank": 1, "world": 3}, 1),
        ({"length": 0}, 0),
    ],
)
def test_its_length_is_in_batches(options: dict[str, Any], batches: int) -> None:
    assert len(indexed(**options)) == batches


def test_a_state_of_another_kind_is_refused() -> None:
    with pytest.raises(StateMismatch, match="of a loader of indexed products, and this one is of"):
        loader("a").load_state_dict(indexed().state_dict())
    with pytest.raises(StateMismatch, match="no state was given"):
        loader("a").load_state_dict([])


@pytest.mark.parametrize("state", [None, 3, "train", [None], b"\0"])
def test_what_is_no_state_is_refused(state: Any) -> None:
    """Also with no checkpoint there, of which ``get`` made None."""
    with pytest.raises(StateMismatch, match="a state is what state_dict"):
        loader("a").load_state_dict(state)
    with pytest.raises(StateMismatch, match="a state is what state_dict"):
        indexed().load_state_dict(state)


def test_it_is_sent_with_where_it_is() -> None:
    made = indexed(rank=0, world=1)
    made.set_epoch(3)
    made.set_model("again/{index}")
    again = pickle.loads(pickle.dumps(made))
    assert again.epoch == 3
    assert again.product_id == "again/{index}"
    assert repr(again) == repr(made) == f"<SoftDataLoader of again/{{index}} at {NOBODY}>"


def test_it_leaves_torchs_random_numbers_alone() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    indexed(shuffle=True).state_dict()
    assert torch.equal(torch.rand(1), wanted)


# --- the bar ----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with Bar("epoch 3", 10, 2) as bar:
        for _ in range(4):
            bar.advance(2)
    bar.close()
    assert "epoch 3" in screen.getvalue()
    assert "10/10" in screen.getvalue()


def test_no_bar_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := io.StringIO())
    with Bar("epoch 3", None, 0) as bar:
        bar.advance(2)
    assert screen.getvalue() == ""
