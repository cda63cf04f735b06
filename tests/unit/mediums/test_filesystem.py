"""Files under the suite for all mediums, and what is particular to them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("entrepot.testing")

from entrepot.mediums import FilesystemMedium  # noqa: E402
from entrepot.testing import MediumContract  # noqa: E402


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that clients and suppliers share."""
    directory = tmp_path / "shared"
    directory.mkdir()
    monkeypatch.setenv("ENTREPOT_SUPPLIER__FILE_ROOT", str(directory))
    monkeypatch.setenv("ENTREPOT_CLIENT__FILE_ROOT", str(directory))
    return directory


@pytest.mark.usefixtures("root")
class TestFilesystemMedium(MediumContract):
    bad_places = (
        *MediumContract.bad_places,
        "entrepot-",
        "entrepot-" + "0" * 31,
        "entrepot-" + "0" * 33,
        "entrepot-" + "F" * 32,
        "/entrepot-" + "0" * 32,
        "./entrepot-" + "0" * 32,
        "x/../entrepot-" + "0" * 32,
        "entrepot-" + "0" * 32 + "\n",
        "entrepot-" + "0" * 32 + "/",
        "entrepot-net-" + "0" * 32,
    )

    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> FilesystemMedium:
        return FilesystemMedium.create(slot_nbytes, slots, poison=poison)


class TestNetworkFilesystemMedium(TestFilesystemMedium):
    def make(self, slot_nbytes: int, slots: int, *, poison: bool = False) -> FilesystemMedium:
        return FilesystemMedium.create(slot_nbytes, slots, poison=poison, network=True)
