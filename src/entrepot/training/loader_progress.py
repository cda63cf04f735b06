"""A bar that shows how far an epoch is."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

SHOW_S = 0.1
"""Seconds between two looks of whoever watches."""


class Bar:
    """On a terminal, on stderr; nothing elsewhere. It has no thread: it moves with the samples."""

    def __init__(self, what: str, total: int | None, came: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._shown: Progress | None = None
        self._came = self._began_with = came
        self._began = time.monotonic()
        self._at = 0.0
        if console.is_terminal:
            self._shown = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                console=console,
                auto_refresh=False,
            )
            self._task = self._shown.add_task(what, total=total, completed=came, rate="")
            self._shown.start()

    def advance(self, samples: int) -> None:
        """So many more."""
        self._came += samples
        now = time.monotonic()
        if self._shown is not None and now - self._at >= SHOW_S:
            self._at = now
            self._show(now)

    def _show(self, now: float) -> None:
        assert self._shown is not None
        rate = (self._came - self._began_with) / max(now - self._began, 1e-9)
        self._shown.update(self._task, completed=self._came, rate=f"{rate:,.0f}/s")
        self._shown.refresh()

    def close(self) -> None:
        """It stays where it is; any number of times."""
        shown = self._shown
        if shown is not None:
            self._show(time.monotonic())
            self._shown = None
            shown.stop()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
