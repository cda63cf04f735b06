"""What goes wrong on a command line is told in a line that says what to do."""

from __future__ import annotations

import signal
import time

import pytest

from tests.integration.cli_terminals import WAIT_S, Terminals, objects, told_in_a_line


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ("nowhere:make", "no module 'nowhere'"),
        ("mine:nothing", "no 'nothing' in module 'mine'"),
        ("mine:number", "cannot be called"),
        ("mine:later", "'mine:later' is async"),
        ("mine:yields", "'mine:yields' is a generator"),
        ("mine:waits", "'mine:waits' is async"),
        ("mine", "give package.module:function"),
    ],
)
def test_what_cannot_be_served_is_said(terminals: Terminals, serve: str, said: str) -> None:
    code, out, err = terminals.run("supplier", "--serve", serve, "--product", "x")
    assert (code, out) == (1, "")
    assert said in told_in_a_line(err, "configuration")


def test_a_port_in_use(terminals: Terminals) -> None:
    terminals.broker()
    code, _, err = terminals.run("broker", "--frontend", terminals.frontend)
    assert code == 1
    assert terminals.frontend in told_in_a_line(err, "endpoint_in_use")


def test_a_bad_pattern(terminals: Terminals) -> None:
    code, _, err = terminals.run("supplier", "--serve", "mine:make", "--product", "(?<=a)b")
    assert code == 1
    assert "(?<" in told_in_a_line(err, "pattern_refused")


def test_a_pattern_that_is_anothers(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", r"layer_\d+", more=["--exclusive"])
    code, _, err = terminals.run(
        *("supplier", "--serve", "mine:make", "--product", r"layer_\d+"),
        *("--backend", terminals.backend),
    )
    assert code == 1
    assert "layer_" in told_in_a_line(err, "pattern_taken")


def test_who_waits_for_a_pattern_says_so_once(terminals: Terminals) -> None:
    terminals.broker()
    first = terminals.supplier("make", "x", name="first", more=["--exclusive"])
    second = terminals.start(
        *("supplier", "--serve", "mine:make", "--product", "x", "--name", "second", "--exclusive"),
        *("--backend", terminals.backend, "--json"),
    )
    waiting = second.logged("waiting to register")
    assert waiting["code"] == "pattern_taken"
    assert "supplier 'first'" in waiting["why"]
    assert waiting["why"] in waiting["message"]
    first.signal(signal.SIGTERM)
    assert second.event("serving")["supplier"] == "second"
    second.signal(signal.SIGTERM)
    _, _, err = second.end()
    assert not any(each["message"].startswith("waiting to register") for each in objects(err))


def test_a_function_that_raises(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("raises", "x", name="poor")
    code, _, err = terminals.pull("x", "--count", "3")
    assert code == 1
    said = told_in_a_line(err, "failed")
    assert "poor: RuntimeError: no GPU: x (5 times)" in said
    assert said.count("no GPU") == 1


def test_a_terminal_obeys_nothing_that_a_supplier_says(terminals: Terminals) -> None:
    """The error of a function comes from another machine, and may be anything."""
    terminals.broker()
    terminals.supplier("colours", "x")
    code, out, err = terminals.pull("x", "--json")
    assert code == 1
    assert r"ValueError: \x1b[31m red" in objects(out)[-1]["message"]
    assert r"ValueError: \x1b[31m red \x9b" in err
    assert all(sign.isprintable() or sign == "\n" for sign in out + err)


def test_a_product_larger_than_its_slot(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", ".*")
    code, _, err = terminals.pull("x" * 100, "--slot-size", "299")
    assert code == 1
    assert "ProductTooLarge" in told_in_a_line(err, "failed")


def test_no_supplier_within_the_time_out(terminals: Terminals) -> None:
    terminals.broker()
    code, _, err = terminals.pull("nobody's", "--timeout", "0.3")
    assert code == 1
    assert "nobody's" in told_in_a_line(err, "order_timeout")


def test_an_absent_broker_is_told_within_the_time_out(terminals: Terminals) -> None:
    began = time.monotonic()
    code, _, err = terminals.run(
        *("client", "pull", "x", "--frontend", "tcp://127.0.0.1:1", "--broker-timeout", "0.5")
    )
    assert code == 1
    assert "tcp://127.0.0.1:1" in told_in_a_line(err, "broker_unavailable")
    assert time.monotonic() - began < WAIT_S


def test_beyond_loopback_it_says_that_there_is_no_authentication(terminals: Terminals) -> None:
    free = "tcp://127.0.0.1:0"
    broker = terminals.start("broker", "--frontend", "tcp://*:0", "--backend", free, "--json")
    broker.event("listening")
    broker.signal(signal.SIGTERM)
    code, _, err = broker.end()
    assert code == 0
    warned = [each for each in objects(err) if each["level"] == "warning"]
    assert len(warned) == 1
    assert "tcp://*:0" in warned[0]["message"]
    assert "no authentication" in warned[0]["message"]


def test_on_loopback_nothing_is_warned_of(terminals: Terminals) -> None:
    broker = terminals.broker()
    broker.signal(signal.SIGTERM)
    assert {each["level"] for each in objects(broker.end()[2])} == {"info"}
