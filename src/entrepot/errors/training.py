"""What goes wrong between a model, its captures, and who trains on them."""

from __future__ import annotations

from collections.abc import Sequence

from entrepot.errors.root import EntrepotError


class ContractError(EntrepotError, ValueError):
    """A product's bytes and what the contract says about them do not agree."""

    code = "contract"


class CaptureError(EntrepotError):
    """The root of what goes wrong while a model's activations are captured."""

    code = "capture"


class SpecError(CaptureError, ValueError):
    """A capture's specification cannot be read."""

    code = "capture_spec"

    def __init__(self, spec: str, position: int, expected: str) -> None:
        self.position = position
        self.expected = expected
        super().__init__(
            f"{spec!r} cannot be read: at character {position} there must be {expected}; write "
            f"inputs[a|b]|outputs[c], where names are keys of named_modules()"
        )


class UnknownModule(CaptureError, LookupError):
    """The model has no module of a name that a specification asks for."""

    code = "unknown_module"

    def __init__(self, name: str, nearest: Sequence[str]) -> None:
        self.name = name
        self.nearest = list(nearest)
        near = ", ".join(repr(one) for one in nearest) or "none: the model has no modules"
        super().__init__(f"the model has no module {name[:120]!r}; the nearest are {near}")


class ModuleDidNotRun(CaptureError):
    """The forward came to its end without a module that was asked for."""

    code = "module_did_not_run"

    def __init__(self, name: str, side: str) -> None:
        self.name = name
        super().__init__(
            f"the {side} of module {name!r} were asked for, and the forward did not call it; ask "
            f"for one that these arguments lead to"
        )


class HookDidNotFire(CaptureError):
    """The model was compiled before the catcher was made."""

    code = "hook_did_not_fire"

    def __init__(self, name: str, side: str) -> None:
        self.name = name
        super().__init__(
            f"the {side} of module {name!r} were asked for, and its hook did not fire, since the "
            f"model was compiled before; make the ModelIOCatcher first, then call model.compile()"
        )


class LoaderError(EntrepotError):
    """The root of what goes wrong between a loader, its workers and who trains."""

    code = "loader"


class WorkerDied(LoaderError):
    """A worker process of a loader was killed, or ended before it was told to."""

    code = "worker_died"


class StateMismatch(LoaderError, ValueError):
    """A loader's state is not one that this loader can go on from."""

    code = "state_mismatch"


class TeacherError(EntrepotError):
    """The root of what keeps a teacher from making a product."""

    code = "teacher"


class NotServed(TeacherError, LookupError):
    """The teacher has no product of this name, or no such sample."""

    code = "not_served"


class WrongTake(TeacherError, TypeError):
    """What a teacher's ``take`` returned is no mapping of the contract's names to tensors."""

    code = "wrong_take"


class BatchesEnded(TeacherError):
    """The teacher's batches have come to their end and cannot be begun again."""

    code = "batches_ended"
