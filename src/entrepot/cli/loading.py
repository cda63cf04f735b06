"""From ``package.module:function`` to the function."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from entrepot.arguments import checked_function
from entrepot.errors import ConfigurationError

FORM = "package.module:function, such as mine:make for `make` in mine.py here"


def load_function(name: str) -> Callable[..., Any]:
    """Import what ``name`` says. The working folder is searched first, as by ``python -m``.

    Raises:
        ConfigurationError: the name has another form, there is no such module or function, the
            module fails while it is imported (said with file and line), or what it names cannot be
            called, or is async or a generator.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path or module_name.startswith("."):
        raise ConfigurationError(f"{name!r} does not say what to serve; give {FORM}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _module(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"there is no {path!r} in module {module_name!r} ({_place(module_name)}); "
                f"it has {_functions(found)}"
            ) from None
    if not callable(found):
        raise ConfigurationError(
            f"{name!r} is of type {type(found).__name__} and cannot be called; give a "
            f"function that takes a product's name and returns its bytes"
        )
    function: Callable[..., Any] = checked_function(repr(name), found)
    return function


def _module(name: str) -> Any:
    try:
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    except (ModuleNotFoundError, ValueError) as fault:
        missing = getattr(fault, "name", None)
        if missing is None or name == missing or name.startswith(f"{missing}."):
            raise ConfigurationError(
                f"there is no module {name!r} in {Path.cwd()} or among the installed packages; "
                f"give {FORM}"
            ) from fault
        raise _failed(name, fault) from fault
    except (Exception, SystemExit) as fault:  # the package above it is imported to look for it
        raise _failed(name, fault) from fault
    try:
        return import_module(name)
    except (Exception, SystemExit) as fault:
        raise _failed(name, fault) from fault


def _failed(name: str, fault: BaseException) -> ConfigurationError:
    """A module of the user's that raises is told where it does, in a line."""
    frames = [
        frame
        for frame in traceback.extract_tb(fault.__traceback__)
        if not frame.filename.startswith("<") and frame.filename != __file__
    ]
    frames = [frame for frame in frames if "/importlib/" not in frame.filename]
    if isinstance(fault, SyntaxError):
        place = f" at {fault.filename}:{fault.lineno}"
    else:
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    said = fault.msg if isinstance(fault, SyntaxError) else str(fault)
    return ConfigurationError(
        f"module {name!r} cannot be imported: {type(fault).__name__}: {said}{place}"
    )


def _place(module_name: str) -> str:
    return str(getattr(sys.modules.get(module_name), "__file__", None) or "no file")


def _functions(holder: Any) -> str:
    names = [
        name
        for name, value in vars(holder).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == getattr(holder, "__name__", None)
    ]
    return ", ".join(names[:8]) if names else "no functions of its own"
