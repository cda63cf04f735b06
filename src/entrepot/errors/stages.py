"""What goes wrong between a model and a stage of it that is elsewhere."""

from __future__ import annotations

from entrepot.errors.root import EntrepotError


class StageError(EntrepotError):
    """The root of what goes wrong between a model and a stage of it that is elsewhere.

    :ivar stage: its name, and
    :ivar host: who served it when that was last known; both may be empty.
    """

    code = "stage"

    def __init__(self, message: str, stage: str = "", host: str = "") -> None:
        self.stage = stage
        self.host = host
        super().__init__(message)


class BadStageMessage(StageError, ValueError):
    """A request, a reply or a checkpoint of a stage cannot be read, or a value not be sent."""

    code = "stage_message"


class StageUnavailable(StageError, TimeoutError):
    """Nobody answered for the stage in the time that was given."""

    code = "stage_unavailable"


class StageRequestLate(StageUnavailable):
    """The stage answered, but the request was not all there in time after its order."""

    code = "stage_request_late"


class StageMismatch(StageError):
    """The stage that answers is not the one that was asked for: another version, or protocol."""

    code = "stage_mismatch"


class StageFailed(StageError):
    """The stage's function raised; the message has what."""

    code = "stage_failed"


class StageLost(StageError, ConnectionError):
    """The server that had the run's weights has them no more; ``restore`` continues."""

    code = "stage_lost"


class StageFull(StageError):
    """A stage's server has as many runs as it may, and all of them are in the middle of a step."""

    code = "stage_full"


class OutOfStep(StageError):
    """A stage and who uses it are not at the same step, or whether they are is not known."""

    code = "out_of_step"


class NoGradient(StageError):
    """A gradient came for a forward of which the stage keeps nothing."""

    code = "no_gradient"


class NoCheckpoint(StageError, LookupError):
    """The store has no checkpoint of the run, or none of the step that was asked for."""

    code = "no_checkpoint"
