"""What names a study may have: one rule, for all that makes a study.

What may be made can be read everywhere: in a URL of the sidecar, as an argument of a command, in a
line of a table. Those that read are told no rule: what was made by others, or before, is shown.
"""

from __future__ import annotations

from typing import Any

from entrepot.errors import StudyNameError
from entrepot.study.unseen import unseen_in

STUDY_CHARS = 200
"""Characters of a study's name."""

_OF_STORES = frozenset({"trial", "segment", "space"})


def checked_study(study: Any) -> str:
    """``study``, if a study can be made under that name.

    :raises StudyNameError: it cannot; the message says what of it is in the way.
    """
    if not isinstance(study, str) or not 0 < len(study) <= STUDY_CHARS:
        much = f"{len(study):,} characters: " if isinstance(study, str) else ""
        raise StudyNameError(
            f"a study's name is text of 1 to {STUDY_CHARS} characters, got {much}{study!r:.100}"
        )
    why = wrong_with(study)
    if why is not None:
        raise StudyNameError(f"no study can be named {study!r:.220}: {why}; choose another name")
    return study


def readable_study(study: Any) -> str:
    """``study``, if some study may have that name, whoever made it.

    :raises StudyNameError: it is no text, or empty.
    """
    if not isinstance(study, str) or not study:
        raise StudyNameError(f"a study's name is text, and not empty, got {study!r:.100}")
    return study


def wrong_with(study: str) -> str | None:
    """What a store, a URL or a command would take for something else; None: nothing."""
    sign = unseen_in(study)
    if sign is not None:
        return f"the sign {sign!a} in it ends a line, or cannot be seen or written"
    if study.startswith("-"):
        return "a command takes what begins with - for an option"
    parts = study.split("/")
    for place, part in enumerate(parts):
        if not part:
            return "it has a slash at an end, or two in a row"
        if part != part.strip():
            return f"its part {part!r} has a blank at an end, which nobody sees"
        if part in (".", ".."):
            return f"its part {part!r} is a way through folders, which a URL leaves out"
        if part in _OF_STORES:
            return f"its part {part!r} is one that stores use, as trial, segment and space are"
        if part == "trials" and place:
            return "its part 'trials' would be taken for the trials of what stands before it"
    return None
