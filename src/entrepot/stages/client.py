"""A stage that is served elsewhere, as a function here. Needs no torch."""

from __future__ import annotations

from typing import Any

from entrepot.market.client import Client
from entrepot.stages.calling import ATTEMPTS, TIMEOUT_S, Caller, Description
from entrepot.stages.forms import named_values, put_together
from entrepot.stages.protocol import FORWARD, Reply, Request
from entrepot.stages.values import Value, kept


class RemoteStage:
    """Calls a stage that a :class:`StageServer` serves. From any number of threads.

    >>> clean = RemoteStage(client, "clean")
    >>> ids = clean(["Free entry!", "see you at 8"])

    It takes and gives numpy arrays, str, bytes, and lists of str or bytes; a tuple or a dict of
    these if the stage gives one.

    :param client: of a medium whose slots are large enough for what is sent and what comes. A call
        takes two of them, and one that timed out may hold two more for a while.
    :param stage: its name.
    :param timeout_s: seconds for a call.
    :param attempts: orders for one call, each with its part of that time: another server of the
        stage may have what the first one lost.
    :param version: the stage's, if it has to be that one.
    :raises ConfigurationError: an argument cannot be one.
    """

    def __init__(
        self,
        client: Client,
        stage: str,
        *,
        timeout_s: float = TIMEOUT_S,
        attempts: int = ATTEMPTS,
        version: str = "",
    ) -> None:
        self._caller = Caller(
            client, stage, timeout_s=timeout_s, attempts=attempts, version=version
        )

    @property
    def stage(self) -> str:
        return self._caller.stage

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """What the stage makes of these arguments. What it gives is the caller's to keep.

        :raises StageUnavailable: nobody answered in ``timeout_s``.
        :raises StageFailed: the stage's function raised.
        :raises StageMismatch: the stage has another version.
        :raises BadStageMessage: an argument, or what the stage gives, is nothing that can be sent.
        :raises ProductTooLarge: either has more bytes than a slot of the client's medium.
        """
        request = Request(stage=self._caller.stage, verb=FORWARD)
        return self._caller.ask(request, named_values(args, kwargs), _kept_together)

    def describe(self) -> Description:
        """Name, version and the parameters' hash, as the stage says.

        :raises StageUnavailable: nobody answered in ``timeout_s``.
        """
        return self._caller.describe()

    def __repr__(self) -> str:
        return f"<RemoteStage {self._caller.stage!r} of {self._caller.client!r}>"


def _kept_together(reply: Reply, values: dict[str, Value]) -> Any:
    return put_together(reply.form, {name: kept(each) for name, each in values.items()})
