"""What `helm test` runs: one order is placed and served, one trial is claimed and finished."""

import os
import socket
import uuid

from entrepot import Client
from entrepot.logs import setup
from entrepot.mediums.chosen import create
from entrepot.settings import read_settings

TIMEOUT_S = float(os.environ["TRY_SECONDS"])


def order(client: Client) -> str:
    """Orders, and says what came."""
    stage = os.environ["TRY_STAGE"]
    if stage:
        from entrepot.stages import RemoteStage

        asked = RemoteStage(client, stage, timeout_s=TIMEOUT_S)
        return f"the stage says what it is: {asked.describe()}"
    name = os.environ["TRY_PRODUCT"]
    with client.order(name).result(timeout_s=TIMEOUT_S) as product:
        return f"the order of {name} was served: {len(product.data):,} bytes"


def trial(url: str) -> str:
    """Claims a trial of a study of its own, finishes it, and removes the study."""
    from entrepot.store import Store
    from entrepot.study import Sampler, Space, Study

    name = f"helm-test-{uuid.uuid4().hex}"
    space = Space().real("x", 0.0, 1.0)
    with Store.open(url) as store:
        study = Study(store, name, space, Sampler.random(0), goal="min", me=socket.gethostname())
        try:
            for claimed in study.work(trials=1):
                with claimed:
                    claimed.report(0.5)
            (done,) = study.trials()
            assert done.state == "done", done
        finally:
            store.delete(f"{name}/")
    return "a trial was claimed and finished"


def main() -> None:
    setup("info")
    settings = read_settings().client
    with Client(settings.endpoint, create(settings), timeout_s=TIMEOUT_S) as client:
        print(order(client), flush=True)
    url = os.environ.get("STORE_URL")
    print(trial(url) if url else "there is no store, and no trial to claim", flush=True)


main()
