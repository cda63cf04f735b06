"""What is searched: a space of knobs, and points in it."""

from __future__ import annotations

import builtins
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from entrepot.errors import PointError, SpaceError
from entrepot.study import text
from entrepot.study.knobs import (
    KINDS,
    ChoiceKnob,
    IntKnob,
    Knob,
    RealKnob,
    When,
    checked_flag,
    checked_name,
    look_alike,
)
from entrepot.study.text import Value, among, shown

MAX_KNOBS = 1_000

MAX_TEXT = 1 << 20
"""Characters of a point's text that are read."""

Given = Mapping[str, object]
"""Names and values, as people write them."""


class Space:
    """Knobs, in the order in which they were added. A space never changes: each method that adds
    a knob returns a new one::

        space = (
            Space()
            .real("lr", 1e-5, 1e-1, log=True)
            .int("batch", 16, 128, step=16)
            .choice("opt", ["adam", "sgd"])
            .real("momentum", 0.0, 0.99, when={"opt": "sgd"})
        )

    ``when`` makes a knob conditional: it is part of a point only where each of the named knobs,
    which were added before, has one of the given values. A knob that waits for another that is
    not asked for is not asked for either.

    Spaces are equal when their knobs are, order included.
    """

    __slots__ = ("_by_name", "_by_said", "_digest", "_indices", "knobs")

    def __init__(self) -> None:
        self._set(())

    def _set(self, knobs: tuple[Knob, ...]) -> None:
        self.knobs = knobs
        self._by_name = {knob.name: knob for knob in knobs}
        self._by_said = {text.escape(knob.name): knob for knob in knobs}
        self._indices = {knob.name: index for index, knob in enumerate(knobs)}
        self._digest: str | None = None

    # --- adding knobs -------------------------------------------------------------------

    def real(
        self,
        name: str,
        low: float,
        high: float,
        log: builtins.bool = False,
        *,
        when: Given | None = None,
    ) -> Space:
        """Any float from ``low`` to ``high``; with ``log`` equal ratios are equally likely.

        :raises SpaceError: the name is taken or is none, the range is empty or not finite,
            ``log`` starts at 0 or below, or ``when`` cannot be.
        """
        checked_flag(checked_name(name), "log", log)
        return self._with(RealKnob(name, self._when(name, when), low, high, log))

    def choice(self, name: str, values: Iterable[Value], *, when: Given | None = None) -> Space:
        """One of ``values``: text, numbers, True, False or None, in no order.

        :raises SpaceError: the name is taken or is none, there are no values, two are equal or
            read the same, or ``when`` cannot be.
        """
        checked_name(name)
        return self._with(ChoiceKnob(name, self._when(name, when), cast(Any, values)))

    def bool(self, name: str, *, when: Given | None = None) -> Space:
        """False or True.

        :raises SpaceError: the name is taken or is none, or ``when`` cannot be.
        """
        return self.choice(name, (False, True), when=when)

    def int(
        self,
        name: str,
        low: builtins.int,
        high: builtins.int,
        log: builtins.bool = False,
        *,
        step: builtins.int = 1,
        when: Given | None = None,
    ) -> Space:
        """A whole number from ``low`` to ``high``, both included, in steps of ``step``.

        :raises SpaceError: as for :meth:`real`; or ``high`` is not a whole number of steps from
            ``low``, or ``log`` comes with a step.
        """
        checked_flag(checked_name(name), "log", log)
        return self._with(IntKnob(name, self._when(name, when), low, high, step, log))

    def _with(self, knob: Knob) -> Space:
        for other in self.knobs:
            if other.name == knob.name:
                raise SpaceError(f"knob {knob.name!r} is there already: {other}")
            if look_alike(other.name) == look_alike(knob.name):
                raise SpaceError(f"knobs {other.name!r} and {knob.name!r} look alike; rename one")
        if len(self.knobs) == MAX_KNOBS:
            raise SpaceError(f"knob {knob.name!r} is one more than the {MAX_KNOBS:,} of a space")
        space = Space()
        space._set((*self.knobs, knob))
        return space

    def _when(self, name: str, when: object) -> When:
        if when is None:
            return ()
        if not isinstance(when, Mapping) or not when:
            raise SpaceError(
                f'knob {name!r} has when={shown(when)}; write when={{"opt": "sgd"}}, or several '
                f'values: when={{"opt": ["sgd", "adam"]}}'
            )
        return tuple((parent, self._allowed(name, parent, given)) for parent, given in when.items())

    def _allowed(self, name: str, parent: object, given: object) -> tuple[Value, ...]:
        knob = self._by_name.get(parent) if isinstance(parent, str) else None
        if knob is None:
            raise SpaceError(
                f"knob {name!r} depends on {shown(parent)}, which is not there yet; add that "
                f"first: the space has {self._has()}"
            )
        if knob.options is None:
            raise SpaceError(
                f"knob {name!r} depends on {parent!r}, a real knob, which is never exactly one "
                f"value; let it depend on an int, a choice or a bool"
            )
        listed = given if isinstance(given, list | tuple) else [given]
        try:
            allowed = tuple(dict.fromkeys(knob.accept(value) for value in listed))
        except PointError as error:
            raise SpaceError(f"knob {name!r} depends on what never is: {error}") from None
        if not allowed:
            raise SpaceError(f"knob {name!r} depends on {parent!r} being one of no values")
        return allowed

    # --- what it is ---------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the knobs."""
        return tuple(self._by_name)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits, the same for equal spaces in every process and version."""
        if self._digest is None:
            plain = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
            self._digest = hashlib.sha256(plain.encode()).hexdigest()[:32]
        return self._digest

    def __getitem__(self, name: str) -> Knob:
        return self._by_name[name]

    def index(self, name: str) -> builtins.int:
        """Which of the knobs that is."""
        return self._indices[name]

    def __contains__(self, name: object) -> builtins.bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Knob]:
        return iter(self.knobs)

    def __len__(self) -> builtins.int:
        return len(self.knobs)

    def __eq__(self, other: object) -> builtins.bool:
        if self is other:
            return True
        return self.digest == other.digest if isinstance(other, Space) else NotImplemented

    def __hash__(self) -> builtins.int:
        return hash(self.digest)

    def __str__(self) -> str:
        return ",".join(map(str, self.knobs))

    def __repr__(self) -> str:
        return f"<Space {self}>"

    def to_dict(self) -> dict[str, Any]:
        """What :meth:`from_dict` takes; plain lists, strings and numbers."""
        return {"knobs": [knob.to_dict() for knob in self.knobs]}

    @classmethod
    def from_dict(cls, said: object) -> Space:
        """The inverse of :meth:`to_dict`.

        :raises SpaceError: that was not written by it.
        """
        knobs = said.get("knobs") if isinstance(said, Mapping) and len(said) == 1 else None
        if not isinstance(knobs, list):
            raise SpaceError(f"a space reads {{'knobs': [...]}}, got {shown(said)}")
        space = cls()
        for one in knobs:
            if not isinstance(one, Mapping) or one.get("kind") not in list(KINDS):
                raise SpaceError(f"a knob is one of {', '.join(KINDS)}, got {shown(one)}")
            given = {str(key): value for key, value in one.items() if key != "kind"}
            try:
                space = getattr(space, one["kind"])(**given)
            except TypeError as error:
                raise SpaceError(f"the knob {shown(one)} cannot be read: {error}") from None
        return space

    # --- points -------------------------------------------------------------------------

    def asked(self, knob: Knob, values: Mapping[str, Value]) -> builtins.bool:
        """Whether ``knob`` is part of the point that has ``values`` for the knobs before it."""
        return all(parent in values and values[parent] in allowed for parent, allowed in knob.when)

    def at(self, units: Sequence[float]) -> Point:
        """The point whose knobs lie at ``units``, from 0 to 1, one a knob, in order.

        Those of knobs that are not asked for are not looked at.
        """
        values: dict[str, Value] = {}
        for knob, unit in zip(self.knobs, units, strict=True):
            if not knob.when or self.asked(knob, values):
                values[knob.name] = knob.at(unit)
        return Point._made(self, values)

    def point(self, values: object = None, /, **named: object) -> Point:
        """A point of one's own: ``space.point(lr=1e-3, opt="adam")``, or of a mapping.

        :raises PointError: a knob that is asked for is missing, one is there that is not, or one
            cannot be what it is set to.
        """
        if values is not None and not isinstance(values, Mapping):
            raise PointError(f"a point is made of names and values, got {shown(values)}")
        given: dict[Any, object] = {**(values or {}), **named}
        self._refuse_strangers(given)
        made: dict[str, Value] = {}
        for knob in self.knobs:
            if self._expected(knob, given, made):
                made[knob.name] = knob.accept(given[knob.name])
        return Point._made(self, made)

    def read(self, said: object) -> Point:
        """The point whose ``str`` is ``said``.

        :raises PointError: it is not one of this space's.
        """
        if not isinstance(said, str) or len(said) > MAX_TEXT:
            raise PointError(f"a point's text is a string below {MAX_TEXT:,} characters")
        given: dict[str, str] = {}
        for part in said.split(",") if said else ():
            name, separator, value = part.partition("=")
            if not separator:
                raise PointError(f"{shown(part)} is not name=value, in the point {shown(said)}")
            knob = self._by_said.get(name)
            plain = knob.name if knob else text.unescape(name)
            if plain in given:
                raise PointError(f"knob {plain!r} is twice in the point {shown(said)}")
            given[plain] = value
        self._refuse_strangers(given)
        made: dict[str, Value] = {}
        for knob in self.knobs:
            if self._expected(knob, given, made):
                try:
                    made[knob.name] = knob.read(given[knob.name])
                except PointError as error:
                    raise PointError(f"knob {knob.name!r}: {error}") from None
        return Point._made(self, made)

    def _refuse_strangers(self, given: Mapping[str, object]) -> None:
        strangers = [name for name in given if name not in self._by_name]
        if strangers:
            raise PointError(f"the space has no knob {among(strangers)}; it has {self._has()}")

    def _has(self) -> str:
        """Which knobs it has, for an error."""
        if not self.knobs:
            return "no knobs"
        return f"the knob{'s' if len(self) > 1 else ''} {among(self._by_name)}"

    def _expected(
        self, knob: Knob, given: Mapping[str, object], made: Mapping[str, Value]
    ) -> builtins.bool:
        asked = self.asked(knob, made)
        if asked and knob.name not in given:
            raise PointError(f"knob {knob.name!r} is missing; it is {knob.range_text()}")
        if not asked and knob.name in given:
            conditions = " and ".join(
                f"{parent!r} is {among(allowed)}" for parent, allowed in knob.when
            )
            raise PointError(f"knob {knob.name!r} is set, and asked for only where {conditions}")
        return asked


class Point(Mapping[str, Value]):
    """What the knobs of a space are set to; reads like a dictionary, in the space's order.

    ``str(point)`` is one line that ``space.read`` turns into an equal point. Points are equal
    when they say the same of the same knobs; a dictionary with the same values is equal too.
    """

    __slots__ = ("_row", "_text", "_values", "space")

    space: Space

    def __init__(self, space: Space, values: Given) -> None:
        """As :meth:`Space.point`."""
        point = space.point(values)
        self._fill(space, point._values)

    @classmethod
    def _made(cls, space: Space, values: dict[str, Value]) -> Point:
        """A point of values that are known to be the space's."""
        point = cls.__new__(cls)
        point._fill(space, values)
        return point

    def _fill(self, space: Space, values: dict[str, Value]) -> None:
        self.space = space
        self._values = values
        self._text: str | None = None
        self._row: bytes | None = None

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def row(self) -> bytes:
        """Where each knob lies, 0 to 1, as native doubles in the space's order; NaN for a knob
        that is not part of the point."""
        if self._row is None:
            values, absent = self._values, float("nan")
            units = [
                knob.unit(values[knob.name]) if knob.name in values else absent
                for knob in self.space.knobs
            ]
            self._row = struct.pack(f"={len(units)}d", *units)
        return self._row

    def __str__(self) -> str:
        if self._text is None:
            self._text = ",".join(
                f"{text.escape(name)}={text.write(value)}" for name, value in self._values.items()
            )
        return self._text

    def __repr__(self) -> str:
        return f"Point({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Point):
            return str(self) == str(other) and self._values == other._values
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Point, (self.space, self._values)
