"""One dimension of a space: what it may be set to, and how that lies between 0 and 1.

Samplers think in units, numbers from 0 to 1. ``at`` turns one into a value, and ``unit`` gives
back a number that ``at`` turns into the same value. Where a knob is ``log``, equal distances of
units are equal ratios of values.
"""

from __future__ import annotations

import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

from entrepot.errors import PointError, SpaceError
from entrepot.study import text
from entrepot.study.text import Value, among, shown

MAX_NAME = 200
"""Characters of a name."""

MAX_OPTIONS = 10_000
"""Options of a choice."""

MAX_INTS = 2**50
"""Values of an int knob: as many as units tell apart."""

MAX_LOG_INT = 2**40
"""The highest that a log int knob reaches: beyond it, logarithms of neighbours are too alike."""

When = tuple[tuple[str, tuple[Value, ...]], ...]
"""The conditions of a knob: names of others, and the values at which it is asked for."""


@dataclass(frozen=True)
class Knob(ABC):
    """:ivar when: every one of them must hold for the knob to be part of a point."""

    kind: ClassVar[str]
    name: str
    when: When = ()

    @abstractmethod
    def at(self, unit: float) -> Value:
        """The value at ``unit``, from 0 to 1."""

    @abstractmethod
    def unit(self, value: Any) -> float:
        """Where ``value``, one of the knob's, lies."""

    @abstractmethod
    def accept(self, value: object) -> Value:
        """``value``, in the knob's own type.

        :raises PointError: the knob cannot be set to it.
        """

    @abstractmethod
    def read(self, said: str) -> Value:
        """The value that :func:`entrepot.study.text.write` wrote.

        :raises PointError: it is none of the knob's.
        """

    @abstractmethod
    def grid(self, steps: int, /) -> tuple[Value, ...]:
        """At most ``steps`` values that reach from end to end; every option of a choice."""

    @abstractmethod
    def range_text(self) -> str:
        """What it may be, for people."""

    @property
    def options(self) -> int | None:
        """How many values there are; none where they are a continuum."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which :func:`from_dict` makes the same knob."""
        said: dict[str, Any] = {"kind": self.kind, "name": self.name}
        if self.when:
            said["when"] = {parent: list(values) for parent, values in self.when}
        return said

    def _wrong(self, value: object, why: str) -> PointError:
        return PointError(f"knob {self.name!r} cannot be {shown(value)}: {why}")

    def __str__(self) -> str:
        said = f"{text.escape(self.name)}={self.range_text()}"
        for parent, values in self.when:
            said += f" when {text.escape(parent)}={'|'.join(map(text.write, values))}"
        return said


@dataclass(frozen=True)
class RealKnob(Knob):
    """Any float from ``low`` to ``high``, both included."""

    kind = "real"
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def __post_init__(self) -> None:
        low, high = (_float_bound(self.name, end) for end in (self.low, self.high))
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        _check_range(self.name, low, high)
        if self.log and low <= 0:
            raise SpaceError(
                f"knob {self.name!r} is log from {low!r}; a logarithm needs a low above 0"
            )

    def at(self, unit: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + unit * (high - low))
        else:  # written so that the widest of ranges does not overflow
            value = self.low * (1.0 - unit) + self.high * unit
        return min(max(value, self.low), self.high) + 0.0

    def unit(self, value: float) -> float:
        if self.log:
            low, high, place = math.log(self.low), math.log(self.high), math.log(value)
        else:
            low, high, place = self.low, self.high, value
        span = high - low
        if math.isinf(span):  # halved, the widest of ranges fits in a float
            place, low, span = place / 2, low / 2, high / 2 - low / 2
        # Neighbouring floats may have the same logarithm.
        return min(max((place - low) / span, 0.0), 1.0) if span else 0.5

    def accept(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise self._wrong(value, "it is a number")
        try:
            number = float(value) + 0.0
        except OverflowError:
            raise self._wrong(value, f"it is {self.range_text()}") from None
        if not self.low <= number <= self.high:
            raise self._wrong(value, f"it is {self.range_text()}")
        return number

    def read(self, said: str) -> float:
        return self.accept(text.read_float(said))

    def grid(self, steps: int, /) -> tuple[Value, ...]:
        inner = (self.at(step / (steps - 1)) for step in range(1, steps - 1))
        return tuple(dict.fromkeys((self.low, *inner, self.high)))

    def range_text(self) -> str:
        return f"{'logreal' if self.log else 'real'}({self.low!r},{self.high!r})"

    def to_dict(self) -> dict[str, Any]:
        said = super().to_dict() | {"low": self.low, "high": self.high}
        return said | {"log": True} if self.log else said


@dataclass(frozen=True)
class IntKnob(Knob):
    """``low``, ``low + step`` and so on up to ``high``, which is one of them."""

    kind = "int"
    low: int = 0
    high: int = 1
    step: int = 1
    log: bool = False

    def __post_init__(self) -> None:
        for field in ("low", "high", "step"):
            object.__setattr__(self, field, _int_bound(self.name, field, getattr(self, field)))
        low, high, step = self.low, self.high, self.step
        _check_range(self.name, low, high)
        if step < 1:
            raise SpaceError(f"knob {self.name!r} has step {step}; it is 1 or more")
        if step > high - low:
            raise SpaceError(
                f"knob {self.name!r} has step {step}, and from {low} to {high} there is no room "
                f"for one"
            )
        if (high - low) % step:
            below = high - (high - low) % step
            raise SpaceError(
                f"knob {self.name!r} never reaches {high} from {low} in steps of {step}; write "
                f"{below} or {below + step}"
            )
        if self.options > MAX_INTS:
            raise SpaceError(
                f"knob {self.name!r} has {self.options:,} values, more than {MAX_INTS:,}; take a "
                f"real knob, or a larger step"
            )
        if self.log and low < 1:
            raise SpaceError(f"knob {self.name!r} is log from {low}; a logarithm needs a low of 1")
        if self.log and step != 1:
            raise SpaceError(
                f"knob {self.name!r} is log in steps of {step}; a log knob has no step"
            )
        if self.log and high > MAX_LOG_INT:
            raise SpaceError(
                f"knob {self.name!r} is log up to {high:,}; a log int knob ends at "
                f"{MAX_LOG_INT:,}, take a real one"
            )

    @property
    def options(self) -> int:
        return (self.high - self.low) // self.step + 1

    def _edges(self) -> tuple[float, float]:
        """The logarithms between which each value has as much room as its ratio asks for."""
        return math.log(self.low - 0.5), math.log(self.high + 0.5)

    def at(self, unit: float) -> int:
        if self.log:
            low, high = self._edges()
            value = math.floor(math.exp(low + unit * (high - low)) + 0.5)
            return min(max(value, self.low), self.high)
        return self.low + min(int(unit * self.options), self.options - 1) * self.step

    def unit(self, value: int) -> float:
        if self.log:
            low, high = self._edges()
            return (math.log(value) - low) / (high - low)
        return ((value - self.low) // self.step + 0.5) / self.options

    def accept(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise self._wrong(value, "it is a whole number")
        number = int(value)
        if not self.low <= number <= self.high or (number - self.low) % self.step:
            raise self._wrong(value, f"it is {self.range_text()}")
        return number

    def read(self, said: str) -> int:
        return self.accept(text.read_int(said))

    def grid(self, steps: int, /) -> tuple[Value, ...]:
        last = self.options - 1
        if last < steps:
            return tuple(range(self.low, self.high + 1, self.step))
        if not self.log:
            return tuple(
                self.low + (2 * last * i + steps - 1) // (2 * (steps - 1)) * self.step
                for i in range(steps)
            )
        ratio = math.log(self.high / self.low) / (steps - 1)
        inner = (round(self.low * math.exp(ratio * step)) for step in range(1, steps - 1))
        return tuple(dict.fromkeys((self.low, *inner, self.high)))

    def range_text(self) -> str:
        step = f",step={self.step}" if self.step != 1 else ""
        return f"{'logint' if self.log else 'int'}({self.low},{self.high}{step})"

    def to_dict(self) -> dict[str, Any]:
        said = super().to_dict() | {"low": self.low, "high": self.high}
        if self.step != 1:
            said["step"] = self.step
        return said | {"log": True} if self.log else said


@dataclass(frozen=True)
class ChoiceKnob(Knob):
    """One of ``values``, which have no order."""

    kind = "choice"
    values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _checked_options(self.name, self.values))
        said = {text.write(value): value for value in self.values}
        if len(said) != len(self.values):
            twice = next(v for v in self.values if said[text.write(v)] is not v)
            raise SpaceError(
                f"knob {self.name!r} has the options {shown(twice)} and "
                f"{shown(said[text.write(twice)])}, "
                f"which read the same; keep one"
            )
        object.__setattr__(self, "_said", said)
        # By type as well: 1 is none of the options where True is one.
        object.__setattr__(self, "_places", {(type(v), v): i for i, v in enumerate(self.values)})

    _said: ClassVar[dict[str, Value]]
    _places: ClassVar[dict[tuple[type, Value], int]]

    @property
    def options(self) -> int:
        return len(self.values)

    def at(self, unit: float) -> Value:
        return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]

    def unit(self, value: Value) -> float:
        return (self._places[type(value), value] + 0.5) / len(self.values)

    def accept(self, value: object) -> Value:
        value = _plain(value)
        try:
            known = (type(value), value) in self._places
        except TypeError:  # not hashable
            known = False
        if not known:
            raise self._wrong(value, f"it is one of {among(self.values)}")
        return value  # type: ignore[return-value]  # it is equal to one of them, and of its type

    def read(self, said: str) -> Value:
        if said in self._said:
            return self._said[said]
        plain = text.unescape(said)
        if plain in self.values and isinstance(plain, str):  # written less strictly, by a person
            return plain
        raise self._wrong(plain, f"it is one of {among(self.values)}")

    def grid(self, _steps: int, /) -> tuple[Value, ...]:
        return self.values

    def range_text(self) -> str:
        return f"choice({'|'.join(map(text.write, self.values))})"

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"values": list(self.values)}


KINDS: Mapping[str, type[Knob]] = {one.kind: one for one in (RealKnob, IntKnob, ChoiceKnob)}


def checked_name(name: object) -> str:
    """:raises SpaceError: it is not a name."""
    if not isinstance(name, str) or not name:
        raise SpaceError(f"a knob's name is a string that is not empty, got {shown(name)}")
    if len(name) > MAX_NAME:
        raise SpaceError(f"a knob's name has {len(name):,} characters; at most {MAX_NAME} do")
    return _unicode(name, "a knob's name")


def _unicode(said: str, what: str) -> str:
    try:
        said.encode()
    except UnicodeEncodeError:
        raise SpaceError(f"{what} is {said!r}, which is not Unicode text") from None
    return said


def look_alike(name: str) -> str:
    """Equal for names that nobody can tell apart by reading."""
    return unicodedata.normalize("NFKC", name)


def checked_flag(name: str, what: str, given: object) -> bool:
    """:raises SpaceError: it is neither True nor False."""
    if not isinstance(given, bool):
        raise SpaceError(f"knob {name!r} has {what}={shown(given)}; it is True or False")
    return given


def _float_bound(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise SpaceError(f"knob {name!r} has the bound {shown(given)}; bounds are numbers")
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpaceError(f"knob {name!r} has the bound {shown(given)}; bounds are finite")
    return number + 0.0


def _int_bound(name: str, what: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise SpaceError(
            f"knob {name!r} has {what} {shown(given)}; those of an int knob are whole numbers"
        )
    number = int(given)
    if abs(number) >= 2**63:
        raise SpaceError(f"knob {name!r} has {what} {shown(given)}, beyond 64 bits")
    return number


def _check_range(name: str, low: float, high: float) -> None:
    if low >= high:
        hint = f'for a fixed value write choice("{name}", [{low!r}])'
        raise SpaceError(f"knob {name!r} reaches from {low!r} to {high!r}, which is empty; {hint}")


def _plain(value: object) -> object:
    """numpy's scalars as Python's, everything else as it is."""
    if isinstance(value, str | bool) or value is None:
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) + 0.0
    item = getattr(value, "item", None)  # numpy's bool is none of the above
    if callable(item) and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    return value


def _checked_options(name: str, given: object) -> tuple[Value, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise SpaceError(f"knob {name!r} has options {shown(given)}; write a list of them")
    if isinstance(given, Set):
        raise SpaceError(f"knob {name!r} has a set of options, which has no order; write a list")
    options: list[Value] = []
    for one in given:
        if len(options) == MAX_OPTIONS:
            raise SpaceError(f"knob {name!r} has more than {MAX_OPTIONS:,} options")
        option = _plain(one)
        if isinstance(option, str):
            _unicode(option, f"an option of knob {name!r}")
        elif isinstance(option, float) and not math.isfinite(option):
            raise SpaceError(f"knob {name!r} has the option {option!r}; options are finite")
        elif option is not None and not isinstance(option, bool | int | float):
            raise SpaceError(
                f"knob {name!r} has the option {shown(option)}; options are text, numbers, "
                f"True, False and None: name the others, and look them up"
            )
        if isinstance(option, int) and abs(option) >= 2**63:
            raise SpaceError(f"knob {name!r} has the option {shown(option)}, beyond 64 bits")
        if option in options:
            equal = options[options.index(option)]
            raise SpaceError(
                f"knob {name!r} has the options {shown(equal)} and {shown(option)}; keep one"
            )
        options.append(option)
    if not options:
        raise SpaceError(f"knob {name!r} has no options")
    return tuple(options)
