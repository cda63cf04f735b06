"""What a product's bytes mean: the names, shapes and dtypes of the tensors in it, in order.

A product is its tensors one after the other, each C-contiguous and little-endian, without
names, lengths or padding: both sides have the contract. ``align`` asks for padding, so that
each tensor begins at a multiple of that many bytes and can be used where it lies. A contract
with ragged tensors begins with one unsigned 64-bit length for each of them.

numpy has no bfloat16 and no float8: there they are ``uint16`` and ``uint8`` of the same bits.
torch is only imported when torch tensors are asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, overload

from entrepot.errors import ContractError, MissingExtra
from entrepot.tensors import RAGGED, TensorSpec, accept, flat, get, plain, put

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Array = NDArray[Any]

HEADER_NBYTES = 8
"""Bytes of the length of each ragged tensor at the front of a product."""

MAX_ALIGN = 4096

_PAGE_OF_ZEROS = bytes(MAX_ALIGN)


class Product(Protocol):
    """What a market delivers: an object whose ``data`` are the bytes."""

    @property
    def data(self) -> memoryview: ...


class Contract:
    """What client and supplier agree on. Immutable; equal when the digests are.

    :param specs: the tensors, in the order in which they lie; mappings are taken as specs.
    :param align: each tensor begins at a multiple of this many bytes, a power of two up to 4096,
        counted from the start of the product. 1, the default, is no padding at all.
    :raises ContractError: two tensors of one name, or an alignment that cannot be.
    """

    def __init__(self, specs: Iterable[TensorSpec | Mapping[str, Any]], align: int = 1) -> None:
        self.specs = _checked_specs(specs)
        names = [spec.name for spec in self.specs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ContractError(
                f"two tensors are called {twice[0]!r}; each needs a name of its own"
            )
        if type(align) is not int or not (1 <= align <= MAX_ALIGN) or align & (align - 1):
            raise ContractError(
                f"align is {align!r}; it is a power of two, from 1 (no padding) to {MAX_ALIGN}"
            )
        self.align = align
        self._by_name = {spec.name: spec for spec in self.specs}
        self._ragged = tuple(spec for spec in self.specs if spec.ragged)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in order."""
        return tuple(self._by_name)

    def spec(self, name: str) -> TensorSpec:
        """The tensor called ``name``.

        :raises ContractError: there is none.
        """
        try:
            return self._by_name[name]
        except KeyError:
            raise ContractError(
                f"the contract has no tensor {name!r}; it has {', '.join(self.names) or 'none'}"
            ) from None

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a product; with ragged tensors, the most that one can have: a slot's size."""
        return self._lie({spec.name: spec.max_ragged or 0 for spec in self._ragged})[1]

    @cached_property
    def digest(self) -> str:
        """32 hex digits that are the same exactly when two contracts are: what parties compare."""
        said = json.dumps(["entrepot contract 1", self.to_dict()], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def difference(self, other: Contract) -> str:
        """How ``other`` differs from this one, a line for each tensor; empty when it does not."""
        lines = []
        for name in [*self.names, *(name for name in other.names if name not in self._by_name)]:
            mine, theirs = self._by_name.get(name), other._by_name.get(name)
            if mine is None:
                lines.append(f"tensor {theirs} is only there")
            elif theirs is None:
                lines.append(f"tensor {mine} is only here")
            elif mine != theirs:
                lines.append(f"tensor {name}: {_differences(mine, theirs)}")
        common = [name for name in self.names if name in other._by_name]
        theirs_of = [name for name in other.names if name in self._by_name]
        if common != theirs_of:
            lines.append(f"order {', '.join(common)} here, {', '.join(theirs_of)} there")
        if self.align != other.align:
            lines.append(f"align {self.align} here, {other.align} there")
        return "\n".join(lines)

    # --- to bytes -----------------------------------------------------------------------

    def encode(self, /, **tensors: Any) -> bytearray:
        """The product of these tensors.

        Takes numpy arrays, torch tensors (of any device, with or without gradient, contiguous
        or not), what has ``__array__``, and, for dtype ``bytes``, bytes.

        :raises ContractError: a name is missing or unknown, or a shape or dtype is another.
        """
        arrays = self._accept(tensors)
        places, nbytes = self._lie(self._lengths(arrays))
        product = bytearray(nbytes)
        self._put(memoryview(product), arrays, places)
        return product

    def encode_into(self, buffer: Buffer, /, **tensors: Any) -> int:
        """:meth:`encode` into ``buffer``, such as the slot itself; how many bytes it took.

        What lies behind them is left as it is.

        :raises ContractError: as ``encode``, or ``buffer`` is too short or may not be written.
            Shapes and dtypes are checked before anything is written.
        """
        target = flat(buffer)
        if target.readonly:
            raise ContractError("the buffer to encode into is read-only; ask for a writable view")
        arrays = self._accept(tensors)
        places, nbytes = self._lie(self._lengths(arrays))
        if nbytes > len(target):
            raise ContractError(
                f"a product of {nbytes} bytes does not fit in a buffer of {len(target)}"
            )
        self._put(target, arrays, places)
        return nbytes

    def _accept(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        unknown = [name for name in tensors if name not in self._by_name]
        missing = [name for name in self._by_name if name not in tensors]
        if unknown or missing:
            wrong = [f"no tensor {name!r} in it" for name in unknown]
            wrong += [f"tensor {name!r} was not given" for name in missing]
            raise ContractError(
                f"the contract has {', '.join(self.names) or 'no tensors'}: {'; '.join(wrong)}"
            )
        return {spec.name: accept(spec, tensors[spec.name]) for spec in self.specs}

    def _lengths(self, arrays: Mapping[str, Any]) -> dict[str, int]:
        return {
            spec.name: int(arrays[spec.name].shape[spec.shape.index(RAGGED)])
            for spec in self._ragged
        }

    def _lie(self, lengths: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """Where each tensor begins, and the bytes of the whole, given the ragged lengths."""
        end = HEADER_NBYTES * len(self._ragged)
        places = {}
        for spec in self.specs:
            start = -(-end // self.align) * self.align
            places[spec.name] = start
            end = start + spec.nbytes_of(lengths.get(spec.name, 0))
        return places, end

    def _put(
        self, target: memoryview, arrays: Mapping[str, Any], places: Mapping[str, int]
    ) -> None:
        lengths = self._lengths(arrays)
        end = 0
        for spec in self._ragged:
            target[end : end + HEADER_NBYTES] = lengths[spec.name].to_bytes(HEADER_NBYTES, "little")
            end += HEADER_NBYTES
        for spec in self.specs:
            start = places[spec.name]
            target[end:start] = _PAGE_OF_ZEROS[: start - end]
            put(spec, arrays[spec.name], target, start)
            end = start + spec.nbytes_of(lengths.get(spec.name, 0))

    # --- from bytes ---------------------------------------------------------------------

    @overload
    def decode(
        self,
        product: Buffer | Product,
        *,
        copy: bool = True,
        framework: Literal["numpy"] = "numpy",
    ) -> dict[str, Array]: ...

    @overload
    def decode(
        self, product: Buffer | Product, *, copy: bool = True, framework: Literal["torch"]
    ) -> dict[str, torch.Tensor]: ...

    def decode(
        self,
        product: Buffer | Product,
        *,
        copy: bool = True,
        framework: Literal["numpy", "torch"] = "numpy",
    ) -> dict[str, Any]:
        """The tensors of a product, by name.

        :param product: its bytes, exactly; or what the market delivered.
        :param copy: give tensors of their own, which may be kept and changed. Without it they are
            windows on the product, good until it is released. numpy's are read-only where the
            product is; torch knows no read-only tensors: do not write to those. torch tensors
            that do not lie at a multiple of their element's size are copied all the same; give
            the contract ``align``.
        :param framework: ``numpy`` or ``torch``.
        :raises ContractError: too few bytes or too many for this contract.
        :raises MissingExtra: torch was asked for and is not installed.
        """
        data = flat(product)
        lengths = self._read_lengths(data)
        places = self._checked_places(data, lengths)
        return {
            spec.name: get(
                spec, data, places[spec.name], lengths.get(spec.name, 0), copy, framework
            )
            for spec in self.specs
        }

    @overload
    def decode_one(
        self,
        product: Buffer | Product,
        name: str,
        *,
        copy: bool = True,
        framework: Literal["numpy"] = "numpy",
    ) -> Array: ...

    @overload
    def decode_one(
        self,
        product: Buffer | Product,
        name: str,
        *,
        copy: bool = True,
        framework: Literal["torch"],
    ) -> torch.Tensor: ...

    def decode_one(
        self,
        product: Buffer | Product,
        name: str,
        *,
        copy: bool = True,
        framework: Literal["numpy", "torch"] = "numpy",
    ) -> Any:
        """The tensor called ``name`` alone; else as :meth:`decode`."""
        spec = self.spec(name)
        data = flat(product)
        lengths = self._read_lengths(data)
        places = self._checked_places(data, lengths)
        return get(spec, data, places[name], lengths.get(name, 0), copy, framework)

    def _read_lengths(self, data: memoryview) -> dict[str, int]:
        header = HEADER_NBYTES * len(self._ragged)
        if len(data) < header:
            raise ContractError(
                f"the product has {len(data)} bytes, too few for the {header} bytes of its header"
            )
        lengths = {}
        for index, spec in enumerate(self._ragged):
            start = HEADER_NBYTES * index
            length = int.from_bytes(data[start : start + HEADER_NBYTES], "little")
            if length > cast(int, spec.max_ragged):
                raise ContractError(
                    f"tensor {spec.name!r} says that it is {length} long, but its max_ragged is "
                    f"{spec.max_ragged}; was the product made under another contract?"
                )
            lengths[spec.name] = length
        return lengths

    def _checked_places(self, data: memoryview, lengths: Mapping[str, int]) -> dict[str, int]:
        places, nbytes = self._lie(lengths)
        if len(data) != nbytes:
            which = "too short" if len(data) < nbytes else "too long"
            raise ContractError(
                f"the product is {which}: {len(data)} bytes where the contract has {nbytes} "
                f"({'; '.join(map(str, self.specs))}); was it made under another contract?"
            )
        return places

    # --- to and from words --------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`from_dict` takes, and YAML and JSON can say."""
        said: dict[str, Any] = {"specs": [spec.to_dict() for spec in self.specs]}
        if self.align != 1:
            said["align"] = self.align
        return said

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Contract:
        """The contract ``{specs: [{name, shape, dtype, max_ragged?}], align?}``.

        Keys that begin with ``_``, such as Hydra's ``_target_``, are dropped.

        :raises ContractError: another key, or one that is missing.
        """
        given = plain(said, "a contract", ("specs", "align"))
        if "specs" not in given:
            raise ContractError(
                "the contract lacks specs; it reads "
                "{specs: [{name: x, shape: [2, 3], dtype: float32}]}"
            )
        return cls(**given)

    @classmethod
    def from_yaml(cls, source: str | Path) -> Contract:
        """The contract in a YAML file, or in YAML text (a string of more than one line, or one
        that begins with ``{``).

        :raises ContractError: it cannot be read, or is not a contract's; with the line, and what
            was expected there.
        :raises MissingExtra: PyYAML is not installed.
        """
        try:
            import yaml
        except ImportError as error:
            raise MissingExtra(
                "contracts in YAML need PyYAML, which is not installed; "
                "pip install 'entrepot[contract]'"
            ) from error
        where = "the YAML text"
        text = str(source)
        if isinstance(source, Path) or not ("\n" in text or text.lstrip().startswith("{")):
            where = text
            try:
                text = Path(source).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ContractError(f"cannot read a contract from {where}: {error}") from error
        try:
            said = yaml.safe_load(text)
            lines = _lines_of(yaml.compose(text, yaml.SafeLoader))
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date, and ten thousand [
            raise ContractError(f"{where} is not YAML: {error}") from error
        listed = said.get("specs") if isinstance(said, dict) else None
        for line, each in zip(lines, listed if isinstance(listed, list) else (), strict=False):
            try:
                TensorSpec.from_dict(each)
            except ContractError as error:
                raise ContractError(f"{where}, line {line}: {error}") from None
        try:
            return cls.from_dict(said)
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Contract):
            return NotImplemented
        return (self.specs, self.align) == (other.specs, other.align)

    def __hash__(self) -> int:
        return hash((self.specs, self.align))

    def __repr__(self) -> str:
        align = f", align={self.align}" if self.align != 1 else ""
        return f"<Contract {self.digest[:8]}: {'; '.join(map(str, self.specs))}{align}>"


def _checked_specs(specs: object) -> tuple[TensorSpec, ...]:
    if isinstance(specs, (str, bytes, Mapping)) or not isinstance(specs, Iterable):
        raise ContractError(f"specs are a list of tensors, got {type(specs).__name__}")
    return tuple(
        spec if isinstance(spec, TensorSpec) else TensorSpec.from_dict(spec) for spec in specs
    )


def _differences(mine: TensorSpec, theirs: TensorSpec) -> str:
    """In what two tensors of one name differ."""
    sides = [
        ("dtype", mine.dtype, theirs.dtype),
        ("shape", list(mine.shape), list(theirs.shape)),
        ("max_ragged", mine.max_ragged, theirs.max_ragged),
    ]
    return "; ".join(
        f"{what} {one} here, {other} there" for what, one, other in sides if one != other
    )


def _lines_of(document: Any) -> list[int]:
    """The line of each tensor in a YAML document, as its parser sees it."""
    if getattr(document, "id", "") != "mapping":
        return []
    for key, value in document.value:
        if key.value == "specs" and value.id == "sequence":
            return [each.start_mark.line + 1 for each in value.value]
    return []
