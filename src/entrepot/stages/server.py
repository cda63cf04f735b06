"""A stage without weights that are trained: a function of arrays and text, served."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from entrepot.arguments import checked_function
from entrepot.settings import SupplierSettings
from entrepot.stages.forms import arguments_of, digest_of, taken_apart
from entrepot.stages.protocol import DESCRIBE, STATELESS, Reply, Request
from entrepot.stages.serving import Answer, Server
from entrepot.stages.values import Value

if TYPE_CHECKING:
    from entrepot.contract import Contract


class StageServer(Server):
    """Serves a stateless stage; as many of one as you like share its calls. Needs no torch.

    >>> def clean(texts: list[str]) -> np.ndarray: ...
    >>> StageServer("tcp://broker:5556", "clean", forward=clean).run()

    :param endpoint: the broker's backend, ``tcp://host:port`` or ``ipc:///path``.
    :param stage: its name: letters, digits, ``_``, ``-`` and ``.``.
    :param forward: gets what the caller gave: numpy arrays, str, bytes, lists of str or bytes; and
        gives one of these, a tuple, or a dict of them. The arrays are its own, to keep and change.
    :param version: what callers may ask for.
    :param parameters: what the stage depends on, by name; ``describe`` has their hash.
    :param name: shown in statistics, logs and errors; host and process id by default.
    :param settings: timeouts, limits and mediums that are taken; by default the environment's.
    :param contract: what callers have to agree on. One whose client has another contract is refused
        and told the difference; one without is not.
    """

    def __init__(
        self,
        endpoint: str,
        stage: str,
        forward: Callable[..., Any],
        *,
        version: str = "",
        parameters: Mapping[str, object] | None = None,
        name: str = "",
        settings: SupplierSettings | None = None,
        contract: Contract | None = None,
    ) -> None:
        self._forward = checked_function(f"the forward of stage {stage!r}", forward)
        self._parameters = "" if parameters is None else digest_of(parameters)
        self._instance = os.urandom(8).hex()
        super().__init__(
            endpoint,
            stage,
            STATELESS,
            self._answer_to,
            version=version,
            name=name,
            exclusive=False,
            settings=settings,
            contract=contract,
        )

    def _answer_to(self, request: Request, values: dict[str, Value]) -> Answer:
        if request.verb == DESCRIBE:
            info: dict[str, str | int] = {"version": self.version, "parameters": self._parameters}
            return Reply(instance=self._instance, info=info), {}
        positional, named = arguments_of(values)
        form, made = taken_apart(self._forward(*positional, **named))
        return Reply(instance=self._instance, form=form), made
