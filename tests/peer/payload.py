"""What a product's bytes are, so that who ordered it can tell whose it is. Runs on both sides."""

from __future__ import annotations


def payload(product_id: str, supplier: str, nbytes: int) -> bytes:
    """``nbytes`` bytes that name the product and who made it, over and over."""
    word = f"{supplier}:{product_id};".encode()
    return (word * (nbytes // len(word) + 1))[:nbytes]
