"""docs/searching.md does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from entrepot.store import Store
from entrepot.study import trials

PAGE = Path(__file__).parents[3] / "docs" / "searching.md"


def test_its_script_is_one_search_wherever_it_is_started(shared: Store, tmp_path: Path) -> None:
    """Twice at once, as two tasks of an array, and once more when all is over."""
    script = tmp_path / "search.py"
    script.write_text(PAGE.read_text().partition("```python\n")[2].partition("```")[0])

    def start(task: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), shared.url],
            env={**os.environ, "SLURM_ARRAY_TASK_ID": task},
            stdout=subprocess.PIPE,
            text=True,
        )

    both = [start("1"), start("2")]
    said = [each.communicate(timeout=100)[0] for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert all(each.startswith("100 trials, 100 finished") for each in said)
    found = trials(shared, study="first-search")
    assert [(one.trial, one.attempt) for one in found] == [(number, 0) for number in range(100)]
    assert {one.meta.who for one in found} <= {"1", "2"}
    third = start("3")
    assert third.communicate(timeout=100)[0].startswith("100 trials, 100 finished")
    assert trials(shared, study="first-search") == found
