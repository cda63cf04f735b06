"""What suppliers make in these tests: bytes that say what they are, who made them, and when.

A product names the order it was made for, its maker, and how many that one had made before; a hash
of all of it comes last. So a product of another order, half of one, one that was overwritten since,
and one that is served for a second time are all told from the right one by who looks at it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from typing_extensions import Buffer

HASH_NBYTES = 32


class Made(NamedTuple):
    """What a product says of itself."""

    product_id: str
    maker: str
    number: int


def make(made: Made, nbytes: int) -> bytes:
    """The product: ``nbytes`` long, or as long as its names want it to be."""
    head = f"{made.product_id}\0{made.maker}\0{made.number}\0".encode()
    room = max(nbytes - HASH_NBYTES, len(head))
    body = (head * (room // len(head) + 1))[:room]
    return body + sha256(body).digest()


def read(product_id: str, data: Buffer) -> Made:
    """What ``data`` says of itself.

    :raises ValueError: it is not whole, or not what was ordered.
    """
    whole = bytes(data)
    body, digest = whole[:-HASH_NBYTES], whole[-HASH_NBYTES:]
    if sha256(body).digest() != digest:
        raise ValueError(f"{product_id!r}: what was served is not whole: {whole[:200]!r}")
    named, maker, number = body.decode(errors="replace").split("\0")[:3]
    if named != product_id:
        raise ValueError(f"{product_id!r} was ordered, and served was {named!r} of {maker!r}")
    return Made(named, maker, int(number))


def check_served(served: Iterable[Made], ordered: Iterable[str]) -> None:
    """Each of ``ordered`` was served once, and no product was served for two orders.

    :raises AssertionError: with what is missing, or there twice.
    """
    found = list(served)
    products = [made.product_id for made in found]
    wanted = list(ordered)
    lost = set(wanted).difference(products)
    assert not lost, f"{len(lost)} of {len(wanted)} were not served: {sorted(lost)[:5]}"
    assert sorted(products) == sorted(wanted), "an order was served twice"
    assert len(set(found)) == len(found), "a product was served for two orders"
