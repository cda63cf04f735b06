"""What the README shows is what happens."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from entrepot.store import Store
from entrepot.study import trials
from tests.integration.cli_terminals import WAIT_S, Terminals, objects

README = Path(__file__).parents[2] / "README.md"


def readme_code(terminals: Terminals) -> list[str]:
    """The README's programs, for the broker of this test."""
    text = README.read_text()
    for there, here in (("5555", terminals.frontend), ("5556", terminals.backend)):
        text = text.replace(f"tcp://127.0.0.1:{there}", here)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_three_terminals_of_the_readme(terminals: Terminals) -> None:
    terminals.broker()
    mine, client, *_ = readme_code(terminals)
    (terminals.folder / "mine.py").write_text(mine)
    terminals.supplier("make", r"layer_\d+", name="mine")
    code, out, _ = terminals.pull("layer_3", "--count", "20")
    assert code == 0
    assert "20 of 20 products, 5,242,880 bytes" in out
    done = subprocess.run(
        [sys.executable, "-c", client], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stderr == ""
    assert f"```\n{done.stdout}```" in README.read_text(), "it prints what it is said to print"
    code, out, _ = terminals.run("drain", "--frontend", terminals.frontend)
    assert out == "asked 1 supplier to leave\n  mine has left; it served 121\n"


def test_the_readme_supplier_in_python(terminals: Terminals) -> None:
    terminals.broker()
    _, _, program, _ = readme_code(terminals)
    supplier = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        code, out, _ = terminals.pull("batch_7", "--json", "--timeout", str(WAIT_S))
        assert code == 0
        assert objects(out)[0]["nbytes"] == 8 * 128 * 4 + 8
    finally:
        supplier.send_signal(signal.SIGTERM)
        _, err = supplier.communicate(timeout=WAIT_S)
    assert supplier.returncode == 0, err


def test_the_readme_search_in_two_terminals(terminals: Terminals) -> None:
    """The same program twice, side by side: each trial is run once, and both say the same."""
    terminals.broker()  # which a search has nothing to do with; the other programs name it
    _, _, _, program = readme_code(terminals)
    searches = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=terminals.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [search.communicate(timeout=WAIT_S) for search in searches]
    assert [search.returncode for search in searches] == [0, 0], ends
    assert ends[0][0] == ends[1][0]
    with Store(terminals.folder / "trials") as store:
        found = trials(store, study="spam")
    assert [(one.trial, one.attempt) for one in found] == [(number, 0) for number in range(20)]


def test_the_readme_names_files_that_are_there() -> None:
    for target in re.findall(r"\]\(([^):]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
