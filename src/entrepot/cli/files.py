"""Where ``entrepot client pull --output`` puts products: a file for each, or standard output."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from entrepot.errors import ConfigurationError

if TYPE_CHECKING:
    from entrepot.market.client import Product

NAME_CHARS = 80
"""Characters of a product's name that go into a file's name."""


def writer(target: str | None, count: int) -> Callable[[Product], None] | None:
    """What puts a product where ``target`` says: a folder, or ``-``; None for nowhere.

    :raises ConfigurationError: the folder cannot be made; or, from what is returned, written to.
    """
    if target is None:
        return None
    if target == "-":
        out = sys.stdout.buffer

        def to_stdout(product: Product) -> None:
            out.write(product.data)
            out.flush()

        return to_stdout
    if not target:
        raise ConfigurationError("--output '' names no folder; give one, . for this one, or -")
    folder = Path(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ConfigurationError(
            f"cannot write to the folder {target!r}: {fault.strerror}; give another --output"
        ) from fault
    digits = max(6, len(str(count - 1)))
    number = 0

    def to_folder(product: Product) -> None:
        nonlocal number
        path = folder / f"{file_name(product.product_id)}-{number:0{digits}}.bin"
        number += 1
        try:
            path.write_bytes(product.data)
        except OSError as fault:
            raise ConfigurationError(f"cannot write {path}: {fault.strerror}") from fault

    return to_folder


def file_name(product_id: str) -> str:
    """A name for a file that says which product it is: no separators, not too long.

    Where characters were replaced or cut, a part of the id's hash tells alike ones apart.
    """
    kept = re.sub(r"[^\w.@ +=-]", "_", product_id).strip(". ")[:NAME_CHARS]
    while len(kept.encode()) > 2 * NAME_CHARS:
        kept = kept[:-1]
    if kept and kept == product_id:
        return kept
    return f"{kept or 'product'}~{hashlib.sha256(product_id.encode()).hexdigest()[:8]}"
