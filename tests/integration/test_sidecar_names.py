"""A study of whatever name is read everywhere: in the API, on the page, by the commands."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from entrepot.store import Store
from entrepot.store.record import EMPTY
from tests.integration.cli_terminals import Terminals
from tests.integration.test_sidecar import get, ran, said, sidecar
from tests.peer.waiting import until
from tests.unit.cli.studies import objects, run
from tests.unit.study.names import GOOD

OLD = ("\n", "a\nb", "a\n", " ", "-x")
"""Names that no study is given any more, and that one may have from before."""


def test_what_can_be_made_can_be_read_everywhere(
    terminals: Terminals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "store")
    with Store(folder, durable=False) as store:
        for name in GOOD:
            ran(store, 0, study=name)
        like = store.resolve("spam/trial/0/0")
        assert like is not None
        for name in OLD:
            store.bind(f"{name}/trial/0/0", EMPTY, like.meta)
    names = {*GOOD, *OLD}
    _, url = sidecar(terminals, "--store", folder)
    until(lambda: said(f"{url}/api/v1/studies")["total"] == len(names))
    listed = said(f"{url}/api/v1/studies?limit=1000")["studies"]
    assert {one["study"] for one in listed} == names
    for name in names:
        for path in {quote(name), quote(name, safe="")}:
            base = f"{url}/api/v1/studies/{path}"
            assert said(base)["study"] == name
            assert [one["trial"] for one in said(f"{base}/trials")["trials"]] == [0], name
            assert said(f"{base}/trials/0/curve") == {"trial": 0, "reports": [0.5]}, name
        assert get(f"{url}/studies?name={quote(name, safe='')}")[0] == 200, name
    code, out, _ = run(capfd, "list", folder, "--json")
    assert code == 0
    assert {one["name"] for one in objects(out) if one["event"] == "study"} == names
    for name in names:
        code, out, _ = run(capfd, "show", folder, "--json", "--", name)
        assert (code, '"trial":0' in out.replace(" ", "")) == (0, True), name
    for name in OLD:  # and can be got rid of
        assert run(capfd, "delete", folder, "--yes", "--", name)[0] == 0
    code, out, _ = run(capfd, "list", folder, "--json")
    assert {one["name"] for one in objects(out) if one["event"] == "study"} == {*GOOD}
