"""The command line as real processes: three terminals, and what a person sees on them."""

from __future__ import annotations

import os
import re
import signal

from tests.integration.cli_terminals import WAIT_S, OnTerminal, Terminals, objects


def test_three_terminals_for_a_person(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", r"layer_\d+")
    code, out, err = terminals.pull("layer_3", "--count", "300")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("layer_3: 300 of 300 products, 6,300 bytes in ")
    assert "orders/s" in second
    assert "MB/s" in second
    assert "p99" in second


def test_three_terminals_for_a_script(terminals: Terminals) -> None:
    broker = terminals.broker()
    supplier = terminals.supplier("make", r"layer_\d+", "other")
    code, out, _ = terminals.pull("other", "--count", "300", "--json")
    (pulled,) = objects(out)
    assert code == 0
    assert (pulled["event"], pulled["product"], pulled["came"]) == ("pulled", "other", 300)
    assert pulled["nbytes"] == 300 * 15
    assert pulled["orders_per_s"] > 0
    assert 0 < pulled["latency_p50_s"] <= pulled["latency_p99_s"]

    code, out, _ = terminals.run("stats", "--frontend", terminals.frontend, "--json")
    (stats,) = objects(out)
    assert code == 0
    assert stats["orders"]["fulfilled"] == 300
    assert [each["name"] for each in stats["suppliers"]["list"]] == ["one"]

    supplier.signal(signal.SIGTERM)
    code, out, _ = supplier.end()
    assert code == 0
    assert objects(out)[-1] == {"event": "left", "supplier": "one", "served": 300, "failed": 0}
    broker.signal(signal.SIGTERM)
    code, out, _ = broker.end()
    assert code == 0
    assert objects(out)[-1] == {"event": "stopped", "signal": "SIGTERM"}


def test_a_function_that_fills_the_slot(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("fill", "x")
    code, out, _ = terminals.pull("x", "--output", "-")
    assert (code, out) == (0, "5byte")


def test_names_of_all_kinds(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", ".*", name="ñandú, with spaces 🐟")
    for number, name in enumerate(("with spaces", "ñ 🐟", "a/b|c[1].*", "-dash", "")):
        files = terminals.folder / str(number)
        code, _, err = terminals.pull("--output", str(files), "--", name)
        assert (code, err) == (0, "")
        (file,) = files.iterdir()
        assert file.read_bytes() == name.encode() * 3
    code, out, _ = terminals.run("stats", "--frontend", terminals.frontend)
    assert code == 0
    assert "ñandú, with spaces 🐟" in out


def test_every_product_gets_a_file(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    code, _, _ = terminals.pull("x", "--count", "12", "--output", "here/and there")
    folder = terminals.folder / "here" / "and there"
    assert code == 0
    assert sorted(file.name for file in folder.iterdir()) == [f"x-{n:06}.bin" for n in range(12)]


def test_a_broken_pipe_is_no_fault_of_ours(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    pull = terminals.start(
        *("client", "pull", "x", "--count", "100000", "--output", "-"),
        *("--frontend", terminals.frontend),
    )
    out, err = pull.process.stdout, pull.process.stderr
    assert out is not None
    assert err is not None
    assert os.read(out.fileno(), 3) == b"xxx"
    out.close()
    assert pull.process.wait(WAIT_S) == 1
    assert "Traceback" not in err.read().decode()


# --- logs and terminals -----------------------------------------------------------------


def test_logs_name_the_order_and_the_supplier(terminals: Terminals) -> None:
    terminals.broker()
    supplier = terminals.supplier("raises", "x", name="poor")
    terminals.pull("x")
    supplier.signal(signal.SIGTERM)
    _, _, err = supplier.end()
    failed = [each for each in objects(err) if each["level"] == "warning"]
    assert failed
    assert all("failed: RuntimeError: no GPU: x" in each["message"] for each in failed)
    assert ", in raises\n" in failed[0]["exception"]
    assert all(each["supplier"] == "poor" and each["order_id"] for each in failed)


def test_on_a_terminal_there_is_a_bar_and_text(terminals: Terminals) -> None:
    terminals.broker()
    terminals.supplier("make", "x")
    pull = OnTerminal("client", "pull", "x", "--count", "500", "--frontend", terminals.frontend)
    assert pull.end() == 0
    shown = pull.shown.decode()
    assert "━" in shown
    assert "500/500" in shown
    assert "x: 500 of 500 products" in shown


def test_on_a_terminal_it_says_why_nothing_comes(terminals: Terminals) -> None:
    terminals.broker()
    pull = OnTerminal("client", "pull", "nobody's", "--frontend", terminals.frontend)
    pull.read(until="no supplier that is there serves")
    pull.process.send_signal(signal.SIGINT)
    assert pull.end() == 130


def test_without_a_terminal_the_log_says_why_nothing_comes(terminals: Terminals) -> None:
    terminals.broker()
    pull = terminals.start("client", "pull", "x", "--json", "--frontend", terminals.frontend)
    said = pull.logged("no supplier serves the product; waiting for one")
    assert (said["level"], said["product"]) == ("warning", "x")
    terminals.supplier("make", "x")  # and it does wait
    code, out, err = pull.end()
    assert (code, err) == (0, "")
    assert objects(out)[-1]["came"] == 1


def test_on_a_terminal_logs_are_text(terminals: Terminals) -> None:
    free = "tcp://127.0.0.1:0"
    broker = OnTerminal("broker", "--frontend", free, "--backend", free)
    shown = broker.read(until="suppliers at")
    assert re.match(r"\d\d:\d\d:\d\d info clients at tcp://127.0.0.1:\d+, suppliers at", shown)
    broker.process.send_signal(signal.SIGINT)
    assert broker.end() == 0
