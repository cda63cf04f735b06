"""What is wrong with a message, in words instead of the decoder's notation.

The decoder says ``Expected `int` >= 0 - at `$.orders[2].offset` ``. Whoever reads it wrote a
supplier, or looks at a log, and knows the protocol's page: ``offset of orders number 3 must be an
integer of at least 0``.
"""

from __future__ import annotations

import re

_COMMANDS = {"_Version": "HELLO", "_Patterns": "HELLO", "_Seq": "a message", "Empty": "a message"}
_AFFIXES = re.compile(r"^(?:V1|Client|Supplier|Broker)|Request$|Id$")

_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<number>\d+)\]|(?P<any>\[\.\.\.\])")
_EXPECTED = re.compile(r"^Expected `(?P<kinds>[^`]*)`(?P<rest>.*)$")
_LIMIT = re.compile(r"^ (?P<length>of length )?(?P<sign>[<>]=?) (?P<bound>\S+)$")
_GOT = re.compile(r"^, got `(?P<got>[^`]*)`$")
_FIELD = re.compile(r"^Object (?P<how>missing required|contains unknown) field `(?P<name>[^`]*)`$")

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "bytes": "bytes",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
    "ext": "an extension",
    "datetime": "a time",
}
_SIGNS = {">=": "of at least", "<=": "of at most", ">": "over", "<": "below"}
_UNITS = {"str": " characters", "array": " items", "object": " fields"}


def command_of(kind: str) -> str:
    """The command that a struct of this name is the fields of: HELLO of ``SupplierHello``."""
    return _COMMANDS.get(kind) or _AFFIXES.sub("", kind).upper()


def in_words(fault: str) -> str:
    """The decoder's sentence ``fault``, with the protocol's words for fields and kinds."""
    place = _PLACE.search(fault)
    where = "it"
    if place is not None:
        fault = fault[: place.start()]
        where = _where(place["path"])
        if place["key"]:
            where = f"a key of {where}"
    expected, field = _EXPECTED.match(fault), _FIELD.match(fault)
    if expected is not None:
        return f"{where} {_must_be(expected['kinds'], expected['rest'])}"
    if field is not None:
        has = "lacks" if field["how"].startswith("missing") else "has an unknown field,"
        return f"{where} {has} {field['name']}"
    if fault == "Input data was truncated":
        return "it is cut short"
    fault = fault.replace("MessagePack data is malformed", "it is not MessagePack")
    return fault if where == "it" else f"{fault}, in {where}"


def _where(path: str) -> str:
    """``.orders[2].offset`` as ``offset of orders number 3``."""
    parts: list[str] = []
    for step in _STEP.finditer(path):
        if step["name"]:
            parts.append(step["name"])
        elif step["any"]:
            parts.append("a value")
        elif parts:
            parts[-1] += f" number {int(step['number']) + 1}"
        else:
            parts.append(f"number {int(step['number']) + 1}")
    return " of ".join(reversed(parts)) or "it"


def _must_be(kinds: str, rest: str) -> str:
    names = kinds.split(" | ")
    wanted = " or ".join(_KINDS.get(name, name) for name in names)
    got, limit = _GOT.match(rest), _LIMIT.match(rest)
    if got is not None:
        return f"must be {wanted}, and is {_KINDS.get(got['got'], got['got'])}"
    if limit is not None:
        unit = " bytes" if names[0] == "bytes" else _UNITS.get(names[0], "")
        size = f"{limit['bound']}{unit}" if limit["length"] else limit["bound"]
        return f"must be {wanted} {_SIGNS[limit['sign']]} {size}"
    return f"must be {wanted}{rest}"
