"""Finished blocks of trials become one segment each, which is one read for everybody."""

from __future__ import annotations

from entrepot.store.base import Store
from entrepot.store.layout import BLOCK_TRIALS
from entrepot.study.checks import number
from entrepot.study.held import history
from entrepot.study.trials import attempt_of

CLOSE_AFTER_S = 3600.0
"""Seconds since its last report until a finished block of trials is closed."""


def compact(store: Store, *, study: str, grace_s: float = CLOSE_AFTER_S) -> list[int]:
    """Close every block of 1,000 trials that are all finished, so that it is one read for others.

    :param grace_s: seconds since anybody in the block was heard of.
    :returns: the blocks that this call closed.
    """
    number("grace_s", grace_s, 0)
    found = history(store, study)
    blocks = found.complete_blocks()
    if not blocks:
        return []
    now = store.now()
    closed: list[int] = []
    for block in blocks:
        numbers = range(block * BLOCK_TRIALS, (block + 1) * BLOCK_TRIALS)
        attempts = [one for trial in numbers for one in found.attempts(trial).values()]
        # All of them: of a trial that is finished a higher attempt may still be at work.
        if any(now - attempt.when < grace_s for attempt in attempts):
            continue
        names = [attempt.name for attempt in attempts]
        records = [record for record in store.resolve_many(names) if record is not None]
        if any(now - record.when < grace_s for record in records):
            continue
        # What cannot be read as an attempt stays in its file, and is no part of the segment.
        sound = [(record, attempt) for record in records if (attempt := attempt_of(record, study))]
        complete = {attempt.trial for _, attempt in sound if attempt.finished}
        kept = [record for record, _ in sound]
        if len(complete) == BLOCK_TRIALS and store.close_block(study, block, kept):
            closed.append(block)
    return closed
