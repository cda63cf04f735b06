"""What every test runs under."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["pytester", "tests.plugins.leaks"]

# Time-outs are pytest-timeout's: a deadline for each example fails on a busy machine.
settings.register_profile("entrepot", settings(), deadline=None, print_blob=True)
settings.load_profile("entrepot")
