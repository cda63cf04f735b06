"""Sizes, names of files, figures, and what is local."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from entrepot.cli import output
from entrepot.cli.broker import is_local
from entrepot.cli.files import file_name
from entrepot.cli.options import seconds, size
from entrepot.cli.stats import table
from entrepot.cli.tally import Tally
from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier
from entrepot.mediums import ShmMedium


@pytest.mark.parametrize("text", ["", "MiB", "-1", "0", "1,5MB"])
def test_an_option_says_what_is_wrong_with_a_size(text: str) -> None:
    assert size("1MiB") == size("1048576") == 1 << 20
    with pytest.raises(typer.BadParameter, match=r"size|byte") as told:
        size(text)
    assert repr(text) in str(told.value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e10", "soon", "", "1s"])
def test_an_option_says_what_is_wrong_with_a_time(text: str) -> None:
    assert seconds()("0.5") == 0.5
    assert seconds(0)("0") == 0
    for parse in (seconds(), seconds(0), seconds(0.1)):
        with pytest.raises(typer.BadParameter, match="second") as told:
            parse(text)
        assert repr(text) in str(told.value)
    for parse, least in ((seconds(), "more than 0"), (seconds(0.1), "0.1 or more")):
        with pytest.raises(typer.BadParameter, match=least):
            parse("0")


@given(st.text())
def test_any_product_has_a_name_for_a_file(product: str) -> None:
    name = file_name(product)
    assert Path(name).name == name
    assert name not in ("", ".", "..")
    assert "\0" not in name
    assert len(name.encode()) < 200


def test_plain_names_stay_and_alike_ones_differ() -> None:
    assert file_name("layer_3") == "layer_3"
    assert file_name("ñandú 1") == "ñandú 1"
    assert file_name("a/b") != file_name("a_b")
    assert file_name("a/b") != file_name("a|b")
    assert file_name("x" * 500) != file_name("x" * 501)


@given(st.text(), st.integers(min_value=1, max_value=30))
def test_what_is_shown_of_a_name_is_one_printable_line(name: str, most: int) -> None:
    said = output.shown(name, most)
    assert said.isprintable()
    assert len(said) <= most


@given(st.text())
def test_an_event_is_one_line_of_json(text: str) -> None:
    from contextlib import redirect_stdout

    with redirect_stdout(io.StringIO()) as out:
        output.emit("event", text=text)
    (line,) = out.getvalue().split("\n")[:-1]
    assert json.loads(line) == {"event": "event", "text": text}


OBEYED = "\x1b[31m red \x9b \u202e"
"""What a terminal obeys: a stranger's product, supplier or error may be called that."""


def test_a_terminal_obeys_no_line_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(f"of {OBEYED}\nand more")
    assert capsys.readouterr().out == "of \\x1b[31m red \\x9b \\u202e\nand more\n"


def test_a_terminal_obeys_no_event(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("event", text=OBEYED)
    out = capsys.readouterr().out
    assert out.strip().isprintable()
    assert json.loads(out)["text"] == OBEYED


def test_a_terminal_obeys_no_name_in_the_brokers_figures() -> None:
    """Names of products come from any client, those of suppliers and patterns from any supplier."""
    made = {f"pattern .*|{OBEYED.replace('[', '.')}": bytes}
    with (
        Broker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*") as broker,
        Client(broker.frontend, ShmMedium.create(64, 4)) as client,
        Supplier(broker.backend, made) as supplier,
    ):
        client.order(f"product {OBEYED}")
        supplier.start()
        supplier.wait_registered()
        shown = drawn(table(client.stats(), "here"))
    assert "product \\x1b[31m red" in shown
    assert "pattern .*|\\x1b.31m" in shown
    assert all(sign.isprintable() or sign == "\n" for sign in shown)


def drawn(what: RenderableType) -> str:
    console = Console(width=300, file=io.StringIO(), markup=False, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.00031, "310 µs"), (0.0042, "4.2 ms"), (1.5, "1.50 s")]
)
def test_durations(seconds: float, said: str) -> None:
    assert output.duration(seconds) == said


def test_percentiles() -> None:
    values = [float(n) for n in range(100)]
    assert output.percentile(values, 0.5) == 50
    assert output.percentile(values, 0.99) == 99
    assert output.percentile([1.0], 0.99) == 1
    assert output.percentile([], 0.5) is None


def test_a_summary_of_nothing_has_no_rates() -> None:
    said = Tally("x", 3).summary()
    assert (said["came"], said["orders_per_s"], said["latency_p50_s"]) == (0, None, None)


@pytest.mark.parametrize(
    ("endpoint", "local"),
    [
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.8.8.8:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("ipc:///tmp/x", True),
        ("tcp://*:5555", False),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://eth0:5555", False),
        ("tcp://localhost.example.org:1", False),
    ],
)
def test_who_can_be_reached_from_elsewhere(endpoint: str, local: bool) -> None:
    assert is_local(endpoint) is local
