"""What a capture asks for: ``inputs[a|b]|outputs[c]``, names of modules on either side."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from entrepot.errors import SpecError, UnknownModule

NEAREST = 3
"""Names of modules that an error suggests."""

SHOWN = 120
"""Characters of a specification that an error repeats."""

_BLOCKS = ("inputs", "outputs")


def parse_io_spec(spec: str) -> tuple[list[str], list[str]]:
    """The modules whose inputs, and those whose outputs, are asked for.

    Either block may be empty or missing, and they come in this order or the other. Names are keys
    of ``named_modules()``; they are kept as they stand, each once. Takes time linear in the length.

    >>> parse_io_spec("inputs[layers.0]|outputs[layers.0|layers.5]")
    (['layers.0'], ['layers.0', 'layers.5'])

    :raises SpecError: it cannot be read, and says where; or nothing is asked for.
    """
    found: dict[str, list[str]] = {}
    at = 0
    while True:
        block = next((block for block in _BLOCKS if spec.startswith(f"{block}[", at)), None)
        if block is None:
            raise SpecError(_shown(spec), at, "'inputs[' or 'outputs['")
        if block in found:
            raise SpecError(_shown(spec), at, f"no second '{block}['")
        begin = at + len(block) + 1
        end = spec.find("]", begin)
        if end < 0:
            raise SpecError(_shown(spec), len(spec), f"']', which ends '{block}['")
        found[block] = _names(spec, begin, end)
        at = end + 1
        if at == len(spec):
            break
        if spec[at] != "|":
            raise SpecError(_shown(spec), at, "'|' or the end")
        at += 1
    inputs, outputs = (found.get(block, []) for block in _BLOCKS)
    if not inputs and not outputs:
        raise SpecError(_shown(spec), len(spec), "the name of a module in one of the blocks")
    return inputs, outputs


def io_spec(inputs: Iterable[str] = (), outputs: Iterable[str] = ()) -> str:
    """The text that :func:`parse_io_spec` reads; blocks without names are left out.

    :raises SpecError: a name is empty or has a ``|`` or a ``]`` in it, or there are no names.
    """
    blocks = [
        f"{block}[{'|'.join(names)}]"
        for block, names in zip(_BLOCKS, (list(inputs), list(outputs)), strict=True)
        if names
    ]
    spec = "|".join(blocks)
    parse_io_spec(spec)
    return spec


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """See that each of ``names`` is one of ``known``.

    :raises UnknownModule: one is not; the error has the nearest that there are.
    """
    known = known if isinstance(known, (dict, set)) else set(known)
    for name in names:
        if name not in known:
            near = get_close_matches(name, sorted(known), n=NEAREST, cutoff=0.0)
            raise UnknownModule(name, near)


def _names(spec: str, begin: int, end: int) -> list[str]:
    """The names between two brackets, in their order, each once."""
    if begin == end:
        return []
    names: dict[str, None] = {}
    at = begin
    for name in spec[begin:end].split("|"):
        if not name or name != name.strip():
            raise SpecError(_shown(spec), at, "the name of a module, without spaces around it")
        if "[" in name:
            raise SpecError(_shown(spec), at + name.index("["), "'|' or ']' after a name")
        names[name] = None
        at += len(name) + 1
    return list(names)


def _shown(spec: str) -> str:
    return spec if len(spec) <= SHOWN else f"{spec[:SHOWN]}..."
