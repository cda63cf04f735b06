"""TCP under the suite for all mediums, and what is particular to it."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.mediums import TCPMedium  # noqa: E402
from entrepot.testing import MediumContract  # noqa: E402


class TestTCPMedium(MediumContract):
    bad_places = (
        *MediumContract.bad_places,
        "127.0.0.1",
        "127.0.0.1:7",
        "127.0.0.1:7/",
        "127.0.0.1:0/" + "0" * 32,
        "127.0.0.1:65536/" + "0" * 32,
        "127.0.0.1:7/" + "0" * 31,
        "127.0.0.1:7/" + "0" * 33,
        "127.0.0.1:7/" + "A" * 32,
        "127.0.0.1:7/" + "0" * 32 + "\n",
        "-x:7/" + "0" * 32,
        "a b:7/" + "0" * 32,
        "::1:7/" + "0" * 32,
        ":7/" + "0" * 32,
    )

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> TCPMedium:
        return TCPMedium.create(slot_nbytes, slots, poison=poison)
