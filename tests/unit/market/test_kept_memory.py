"""A function may keep arrays over what it filled: later orders are filled elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier, Work
from entrepot.mediums import FilesystemMedium, TCPMedium, shm
from entrepot.settings import SupplierSettings

ANY = "tcp://127.0.0.1:*"
SIZES = (100_000, 1 << 20, (1 << 20) + 1, 70_000)


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_what_a_function_has_kept_of_its_output_stays_as_it_was(kind: str) -> None:
    kept: list[Any] = []

    def fill(work: Work, out: memoryview) -> int:
        number = len(kept)
        whole = np.ndarray(SIZES[number % len(SIZES)], np.uint8, out)
        whole[:] = number
        kept.append(whole)
        return len(whole)

    nbytes = max(SIZES)
    medium = (
        TCPMedium.create(nbytes, 2)
        if kind == "tcp"
        else FilesystemMedium.create(nbytes, 2, root=str(shm.DIRECTORY))
    )
    settings = SupplierSettings(file_root=str(shm.DIRECTORY))
    with (
        Broker(ANY, ANY) as broker,
        Supplier(broker.backend, {"fill": fill}, settings=settings) as supplier,
        Client(broker.frontend, medium) as client,
    ):
        supplier.start()
        for number in range(3 * len(SIZES)):
            with client.order("fill").result(30) as product:
                assert bytes(product.data) == bytes([number]) * SIZES[number % len(SIZES)]
    assert [set(each.tolist()) for each in kept] == [{number} for number in range(len(kept))]
