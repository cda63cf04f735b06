"""The search over real messages by two machines, which are network namespaces here: they have a
store in common, and one of them the stages."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from entrepot.store import Store
from entrepot.study.trials import DONE, PRUNED
from examples.sms_search.run import line, process
from tests.integration import sms_promises
from tests.integration.market_hosts import FAR, NEAR, Hosts
from tests.integration.sms_promises import Searched, told_in_text

TRIALS, EPOCHS, MESSAGES = 5, 2, 200


def test_a_search_from_two_machines_is_one_search(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with ExitStack() as stack:
        start = stack.enter_context
        machines = start(Hosts())
        there = f"tcp://{NEAR}:0"
        with machines.near.entered():
            broker = start(
                process("entrepot.cli", "broker", "--frontend", there, "--backend", there, "--json")
            )
            where = json.loads(line(broker))
            for stage in ("clean", "embed"):
                start(process(f"examples.sms_search.{stage}", "--backend", where["backend"]))
        search = (
            *("examples.sms_search.search", "--store", url, "--frontend", where["frontend"]),
            *("--trials", str(TRIALS), "--epochs", str(EPOCHS), "--messages", str(MESSAGES)),
        )
        with machines.far.entered():
            far = start(process(*search, "--host", FAR, "--me", "far"))
        first = line(far)  # it is at work, through a broker and stages on the other machine
        with machines.near.entered():
            near = start(process(*search, "--host", NEAR, "--me", "near"))
        said = {
            who: told_in_text(before + "".join(each.stdout or ()))
            for who, each, before in (("far", far, first), ("near", near, ""))
        }
        assert [far.wait(), near.wait()] == [0, 0]
    with Store.open(url, read_only=True) as store:
        searched = Searched(store, said, trials=TRIALS, epochs=EPOCHS)
    sms_promises.each_trial_ran_once(searched)
    sms_promises.the_points_are_those_of_one_machine_alone(searched)
    sms_promises.the_configurations_differ(searched)
    sms_promises.the_record_says_who_ran_which(searched)
    assert {each.state for each in searched.attempts} <= {DONE, PRUNED}
    assert said["far"]
