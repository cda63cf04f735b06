"""``entrepot supplier --batch``: a function of yours that makes many orders in one call."""

from __future__ import annotations

import signal

from tests.integration.cli_terminals import Terminals, objects

MANY = """
import pathlib
from entrepot import Batch

def many(works):
    with pathlib.Path("calls").open("a") as calls:
        print(len(works), file=calls)
    return [work.product_id.encode() * 3 for work in works]

batch = Batch(many, size=2)
"""


def calls(terminals: Terminals) -> list[int]:
    """How many orders each call got."""
    return [int(line) for line in (terminals.folder / "calls").read_text().split()]


def served(terminals: Terminals, function: str, *options: str) -> list[int]:
    """What each call got, of 40 products that a client pulls with all of its slots ordered."""
    (terminals.folder / "many.py").write_text(MANY)
    terminals.broker()
    supplier = terminals.start(
        *("supplier", "--serve", f"many:{function}", "--product", "x", "--json"),
        *("--backend", terminals.backend, *options),
    )
    supplier.event("serving")
    code, out, _ = terminals.pull("x", "--count", "40", "--json")
    assert (code, objects(out)[-1]["came"]) == (0, 40)
    supplier.signal(signal.SIGTERM)
    code, out, _ = supplier.end()
    left = objects(out)[-1]
    assert (code, left["event"], left["failed"]) == (0, "left", 0)
    assert sum(calls(terminals)) == left["served"] >= 40
    return calls(terminals)


def test_orders_that_wait_are_made_together(terminals: Terminals) -> None:
    got = served(terminals, "many", "--batch", "4", "--batch-wait", "30")
    # With a wait that nobody waits out, only the last call may have had less than the size.
    assert set(got[:10]) == {4}


def test_a_batch_in_a_module_has_its_own_size(terminals: Terminals) -> None:
    assert max(served(terminals, "batch")) <= 2


def test_less_credit_than_a_batch_has_is_refused(terminals: Terminals) -> None:
    line = ("supplier", "--serve", "mine:make", "--product", "x", "--batch", "4", "--credit", "3")
    code, _, err = terminals.run(*line)
    assert code == 1
    assert "with credit 3 a batch of 4 would never be full" in err


def test_the_credit_of_the_environment_is_raised_to_the_batch(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x", more=["--batch", "4"])
    code, out, _ = terminals.run("stats", "--frontend", terminals.frontend, "--json")
    assert code == 0
    (one,) = objects(out)[0]["suppliers"]["list"]
    assert one["credit"] == 4
