"""What every test runs under."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

pytest_plugins = ["pytester", "tests.plugins.apart", "tests.plugins.leaks"]

# Time-outs are pytest-timeout's: a deadline for each example fails on a busy machine.
settings.register_profile("entrepot", settings(), deadline=None, print_blob=True)
settings.load_profile("entrepot")

# A shell that starts the tests in the background has Ctrl-C ignored in whatever they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Containers outlive who started them: SIGTERM tears down what was set up, as Ctrl-C does.
if os.environ.get("ENTREPOT_CONTAINERS"):
    pytest_plugins.append("tests.plugins.stacks")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
