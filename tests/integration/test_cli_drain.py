"""``entrepot drain``: who leaves, who does not, and who was never there."""

from __future__ import annotations

from tests.integration.cli_terminals import Terminals, told_in_a_line, wait_until


def test_drain_shows_who_leaves(terminals: Terminals) -> None:
    terminals.broker()
    leaving = terminals.supplier("slow", "x", name="leaving 🐟")
    staying = terminals.supplier("make", "y", name="staying")
    pull = terminals.start("client", "pull", "x", "--frontend", terminals.frontend, "--json")
    wait_until(terminals.folder / "began")
    drain = terminals.start(
        *("drain", "--name", "leaving 🐟", "--frontend", terminals.frontend, "--json")
    )
    assert drain.event("draining")["told"] == 1
    (terminals.folder / "go").touch()
    assert drain.event("left")["name"] == "leaving 🐟"
    assert drain.end()[0] == 0
    assert leaving.end()[0] == 0
    assert pull.end()[0] == 0, "what it held was finished"
    assert staying.process.poll() is None


def test_drain_of_nobody(terminals: Terminals) -> None:
    terminals.broker()
    code, out, _ = terminals.run("drain", "--frontend", terminals.frontend)
    assert (code, out) == (0, "asked 0 suppliers to leave\n")


def test_drain_of_a_name_that_nobody_has_says_who_is_there(terminals: Terminals) -> None:
    terminals.broker()
    code, out, err = terminals.run("drain", "--frontend", terminals.frontend, "--name", "nobody")
    assert (code, out) == (1, "")
    assert "'nobody'; there is none at all" in told_in_a_line(err, "no_such_supplier")
    one = terminals.supplier("make", "x", name="one")
    other = terminals.supplier("make", "x", name="other")
    code, out, err = terminals.run("drain", "--frontend", terminals.frontend, "--name", "nobody")
    assert (code, out) == (1, "")
    assert "'nobody'; there are one, other" in told_in_a_line(err, "no_such_supplier")
    assert [each.process.poll() for each in (one, other)] == [None, None], "nobody was asked"


def test_drain_of_one_that_is_leaving_already_waits_for_it(terminals: Terminals) -> None:
    terminals.broker()
    slow = terminals.supplier("slow", "x", name="slow one")
    terminals.start("client", "pull", "x", "--frontend", terminals.frontend)
    wait_until(terminals.folder / "began")
    again = ("drain", "--name", "slow one", "--frontend", terminals.frontend)
    assert terminals.run(*again, "--wait", "0")[:2] == (0, "asked 1 supplier to leave\n")
    second = terminals.start(*again, "--json")
    assert second.event("draining")["told"] == 0
    (terminals.folder / "go").touch()
    assert second.event("left")["name"] == "slow one"
    assert second.end()[0] == 0
    assert slow.end()[0] == 0


def test_drain_names_who_has_not_left(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("slow", "x", name="slow one")
    terminals.start("client", "pull", "x", "--frontend", terminals.frontend)
    wait_until(terminals.folder / "began")
    code, _, err = terminals.run("drain", "--frontend", terminals.frontend, "--wait", "0.3")
    assert code == 1
    assert "slow one (holds 1)" in told_in_a_line(err, "order_timeout")
