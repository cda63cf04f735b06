"""Every option that takes seconds takes a time that there is: nan is one that never comes."""

from __future__ import annotations

import pytest

from entrepot.cli import main


@pytest.mark.parametrize("given", ["nan", "inf", "1e300", "-1", "soon"])
@pytest.mark.parametrize(
    "line",
    [
        ("store", "init", "/nowhere/at/all", "--wait"),
        ("store", "gc", "/nowhere/at/all", "--grace"),
        ("study", "show", "/nowhere/at/all", "spam", "--stale"),
        ("study", "rescue", "/nowhere/at/all", "spam", "--stale"),
        ("study", "watch", "/nowhere/at/all", "spam", "--interval"),
    ],
    ids=" ".join,
)
def test_what_is_no_time_makes_no_sense(
    line: tuple[str, ...], given: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*line, given])
    assert ended.value.code == 2
    assert "seconds" in capfd.readouterr().err
