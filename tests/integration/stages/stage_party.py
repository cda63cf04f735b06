"""A process that serves a stage, and can be held in the middle of its work.

``python -m tests.integration.stages.stage_party``; see :mod:`tests.peer.lines`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch

from entrepot.settings import SupplierSettings
from entrepot.stages import TorchStageServer
from entrepot.stages.torch.run import Run
from entrepot.store import Store
from tests.peer.lines import commands, serve
from tests.unit.stages.cuts import build_middle


class Holding(torch.optim.AdamW):
    """Waits in the middle of the step whose number a file says: some weights are new, some old."""

    folder = Path()
    made = 0

    def step(self, closure: Any = None) -> Any:
        Holding.made += 1
        if (self.folder / f"hold-step-{Holding.made}").exists():
            groups = self.param_groups
            self.param_groups = [{**groups[0], "params": groups[0]["params"][:2]}]
            super().step()
            hold(self.folder, f"hold-step-{Holding.made}")
            self.param_groups = [{**groups[0], "params": groups[0]["params"][2:]}]
            super().step()
            self.param_groups = groups
            return None
        return super().step(closure)


def hold(folder: Path, name: str) -> None:
    """Say that this process is there, and stay while the file is."""
    (folder / "held").touch()
    while (folder / name).exists():
        time.sleep(0.01)


class Driven:
    """The commands."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def start(
        self,
        backend: str,
        store: str,
        folder: str,
        name: str,
        every: int | None = 1,
        begin: bool = True,
        patience_s: float = 2.0,
    ) -> None:
        """Serve; returns at once.

        :param patience_s: how long it waits for a stage that is another's.
        """
        torch.set_num_threads(1)
        Holding.folder = Path(folder)

        def build(config: dict[str, Any]) -> Any:
            module, _ = build_middle(config)
            return module, Holding(module.parameters(), config["lr"])

        backward = Run.backward

        def held_backward(run: Run, *arguments: Any) -> Any:
            answer = backward(run, *arguments)
            if (Holding.folder / f"hold-backward-{run.step + 1}").exists():
                hold(Holding.folder, f"hold-backward-{run.step + 1}")
            return answer

        Run.backward = held_backward  # type: ignore[assignment,method-assign]
        self._server = TorchStageServer(
            backend,
            "middle",
            build,
            store=Store(store, durable=False),
            checkpoint_every=every,
            name=name,
            settings=SupplierSettings(timeout_s=patience_s),
        )
        self._thread = threading.Thread(target=self._run)
        if begin:
            self._thread.start()

    def serve_here(self, **options: Any) -> int:
        """Serve in the main thread, until a signal ends it; how many runs are in memory then."""
        self.start(**options, begin=False)
        self._server.run()
        return self._server.runs

    def _run(self) -> None:
        try:
            self._server.run()
        except BaseException as error:
            self._error = error

    def registered(self) -> None:
        self._server.wait_registered(30)

    def ended(self) -> str:
        """What ended it, once it has ended by itself."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return type(self._error).__name__

    def close(self) -> None:
        self._server.stop()


if __name__ == "__main__":
    serve(commands(Driven()))
