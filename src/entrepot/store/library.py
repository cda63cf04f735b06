"""obstore, in a form that works in this process, forked or not.

obstore has one runtime a process, made at the first request: threads, and an epoll instance. A fork
takes no thread along, so that a request in the child waits for ever. And it shares the epoll
instance: what the child registers there is registered for its parent, who may then wait for ever
as well.

So a forked child lets what it inherited alone. It loads the library once more, from a copy in
memory, since the system's loader would take a file that it knows for the library that is there
already. That takes some 60 ms and 15 MB, and only in children that use a bucket.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from entrepot.errors import MissingExtra

NAME = "obstore"
NATIVE = f"{NAME}._obstore"


class _Loaded:
    """What this process has of the library; the hook below puts it right in a child.

    :ivar inherited: it was imported before a fork, by whomever, and must not be used here.
    :ivar copies: how many were loaded, here and in the processes that this one comes from.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.module: ModuleType | None = None
        self.inherited = False
        self.copies = 0


_here = _Loaded()


def obstore() -> Any:
    """The library of this process.

    :raises MissingExtra: it is not installed.
    """
    if _here.module is None:
        with _here.lock:
            if _here.module is None:
                _here.module = _loaded_from_a_copy() if _here.inherited else _imported()
    return _here.module


def _imported() -> ModuleType:
    try:
        return importlib.import_module(NAME)
    except ImportError as error:
        raise MissingExtra(
            f"a store in a bucket needs obstore, which cannot be imported ({error}); "
            f"pip install 'entrepot[bucket]'"
        ) from error


# --- after a fork -----------------------------------------------------------------------


def _after_fork() -> None:
    _here.lock = threading.Lock()
    _here.inherited = NAME in sys.modules
    _here.module = None


os.register_at_fork(after_in_child=_after_fork)


def _loaded_from_a_copy() -> ModuleType:
    inherited = _take_off()
    try:
        original = inherited[NATIVE].__file__
        assert original is not None
        with _copied(original) as path:
            finder = _Finder(path)
            sys.meta_path.insert(0, finder)
            try:
                return importlib.import_module(NAME)
            finally:
                sys.meta_path.remove(finder)
    finally:
        # Whoever else imported the library keeps what they had.
        _take_off()
        sys.modules.update(inherited)


def _take_off() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    return {name: sys.modules.pop(name) for name in names}


@contextmanager
def _copied(path: str) -> Iterator[str]:
    """A file with the same bytes, at a path that was never loaded from; gone afterwards."""
    _here.copies += 1
    with Path(path).open("rb") as original:
        try:
            copy = os.memfd_create(NAME)
        except OSError:  # the system allows no libraries in memory
            with tempfile.NamedTemporaryFile(suffix=".so") as file:
                shutil.copyfileobj(original, file)
                file.flush()
                yield file.name
            return
        try:
            left = os.fstat(original.fileno()).st_size
            offset = 0
            while left > offset:
                offset += os.sendfile(copy, original.fileno(), offset, left - offset)
            # The loader compares paths, and numbers of descriptors come again.
            yield f"/proc/self/{'./' * _here.copies}fd/{copy}"
        finally:
            os.close(copy)


class _Finder:
    """Finds the native part of the library in the copy."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if name != NATIVE:
            return None
        loader = ExtensionFileLoader(name, self._path)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)
