"""What goes wrong while a space is searched, and in federated rounds."""

from __future__ import annotations

from collections.abc import Sequence

from entrepot.errors.root import ConfigurationError, EntrepotError


class StudyError(EntrepotError):
    """The root of what goes wrong while a space is searched."""

    code = "study"


class TrialLost(StudyError):
    """A trial is somebody else's by now: it was rescued, or finished, or never taken here."""

    code = "trial_lost"

    def __init__(self, study: str, trial: int, attempt: int | None, why: str) -> None:
        self.study = study
        self.trial = trial
        self.attempt = attempt
        which = "" if attempt is None else f", attempt {attempt},"
        super().__init__(
            f"trial {trial}{which} of {study!r} is not yours to report: {why}; go on with the next"
        )


class BudgetShrank(StudyError, ValueError):
    """A budget is smaller than what the study has begun already."""

    code = "budget_shrank"


class StudyNameError(StudyError, ConfigurationError):
    """A study cannot have this name; the message says what of it is in the way."""

    code = "study_name"


class GoalMismatch(StudyError, ConfigurationError):
    """A study is searched with one goal, and somebody asks for another.

    :ivar agreed: the goal that was there first, and
    :ivar given: the other.
    """

    code = "goal_mismatch"

    def __init__(self, study: str, agreed: object, given: object) -> None:
        self.study = study
        self.agreed = agreed
        self.given = given
        super().__init__(
            f"the goal of the study {study!r} is {agreed!r}, as whoever began it said, and here it "
            f"is {given!r}; give goal={agreed!r}, or another study's name"
        )


class NoStudy(StudyError, LookupError):
    """There is no study of that name in the store."""

    code = "no_study"


class ScoreNotFinite(StudyError, ValueError):
    """A trial cannot be done with NaN or an infinity for a score; the message has the score."""

    code = "score_not_finite"


class StudyRuns(StudyError):
    """Trials of the study run, so that it cannot be deleted."""

    code = "study_runs"


class SpaceError(StudyError, ValueError):
    """A space has a knob that cannot be, or is one that a sampler cannot serve."""

    code = "space"


class PointError(StudyError, ValueError):
    """A point, or the text of one, is not one of the space's."""

    code = "point"


class SamplerFailed(StudyError):
    """A sampler of another library raised; what it said is in the message and the cause."""

    code = "sampler_failed"


class FederationError(StudyError, ValueError):
    """Clients' updates cannot be averaged."""

    code = "federation"


class RunReused(FederationError):
    """A training run goes by the name of one that was there before."""

    code = "run_reused"


class RoundIncomplete(StudyError, TimeoutError):
    """Clients of a round did not turn up in time; ``missing`` has their numbers."""

    code = "round_incomplete"

    def __init__(self, why: str, missing: Sequence[int]) -> None:
        self.missing = list(missing)
        super().__init__(why)
