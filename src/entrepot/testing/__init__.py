"""Suites that any new medium, and any new store, must pass, for pytest.

::

    import pytest
    pytest.register_assert_rewrite("entrepot.testing")

    from entrepot.testing import MediumContract, StoreContract

    class TestMyMedium(MediumContract):
        def make(self, slot_nbytes, slots, *, poison=False):
            return MyMedium.create(slot_nbytes, slots, poison=poison)

    class TestMyStore(StoreContract):
        def make(self):
            return MyStore.new()

pytest is needed only while the tests run, not to import this.
"""

from entrepot.testing.medium import MediumContract
from entrepot.testing.store import StoreContract

__all__ = ["MediumContract", "StoreContract"]
