"""What a module and an optimizer remember, as values and a tree that says where each belongs.

A ``state_dict`` is nested, has numbers as keys, and tensors within. Tensors become values; the
rest is MessagePack, in which a float is the float that it was. No pickle.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta, Struct

from entrepot.errors import BadStageMessage
from entrepot.stages.protocol import Codec, Count, Short
from entrepot.stages.torch.tensors import tensor_of, value_of
from entrepot.stages.values import Item

TREE = "tree"


class Checkpoint(Struct, omit_defaults=True, kw_only=True):
    """The header of a run's state in a store."""

    stage: Short
    run: Short
    config: Annotated[str, Meta(max_length=1 << 16)]
    step: Count
    call: Count = 0
    items: list[Item] = []


# An Adam has three tensors for each parameter, and large models have thousands of these.
_CODEC = Codec(Checkpoint, summed=True, most=1 << 20, header_nbytes=1 << 27)


def pack_state(header: Checkpoint, state: dict[str, Any]) -> bytes:
    """The bytes of a state.

    :raises BadStageMessage: something in it is neither a tensor nor a plain value.
    """
    values: dict[str, object] = {}
    tree = _taken_apart(state, values, "state")
    values[TREE] = msgspec.msgpack.encode(tree)
    return _CODEC.encode(header, values).tobytes()


def unpack_state(data: bytes) -> tuple[Checkpoint, dict[str, Any]]:
    """The inverse of :func:`pack_state`.

    :raises BadStageMessage: it was not written by it.
    """
    header, values = _CODEC.decode(memoryview(bytearray(data)))
    tree = values.get(TREE)
    if not isinstance(tree, bytes):
        raise BadStageMessage("this is no checkpoint of a stage: it has no tree")
    try:
        state = _put_together(msgspec.msgpack.decode(tree), values)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise BadStageMessage(f"this is no checkpoint of a stage: {error}") from None
    if not isinstance(state, dict):
        raise BadStageMessage("this is no checkpoint of a stage: it has no state")
    return header, state


def _taken_apart(said: Any, values: dict[str, object], where: str) -> Any:
    if said is None or isinstance(said, bool | int | float | str | bytes):
        return said
    if isinstance(said, torch.Tensor):
        name = str(len(values))
        values[name] = value_of(said)
        return ["x", name]
    if isinstance(said, dict):
        pairs = [[key, _taken_apart(each, values, f"{where}.{key}")] for key, each in said.items()]
        return ["d", pairs]
    if isinstance(said, list | tuple):
        kind = "l" if isinstance(said, list) else "t"
        return [kind, [_taken_apart(each, values, f"{where}[]") for each in said]]
    raise BadStageMessage(
        f"{where:.200} is a {type(said).__name__}; a checkpoint has tensors, numbers and text"
    )


def _put_together(tree: Any, values: dict[str, Any]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, said = tree
    if kind == "x":
        return tensor_of(values[said])
    if kind == "d":
        return {key: _put_together(each, values) for key, each in said}
    several = [_put_together(each, values) for each in said]
    return several if kind == "l" else tuple(several)
