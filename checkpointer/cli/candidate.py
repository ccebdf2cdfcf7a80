"""Find the candidate of a repair that somebody means. There is no history to ask: only what manifests and catalogs say.

An attempt that was never committed is a candidate too. So whatever fits several is refused, and "the newest by then"
has no answer.
"""

from collections.abc import Sequence

from checkpointer.admin.repair_candidates import Candidate
from checkpointer.checkpoint.resolve import ID_START, LATEST, WHOLE, begins
from checkpointer.display import some
from checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError
from manifests.model import CheckpointId


def find_candidate(found: Sequence[Candidate], url: str, wanted: str) -> CheckpointId:
    """Return the candidate that `wanted` means.

    That is an id, its sequence, the beginning of an id, the name of a savepoint, "epoch=41", "savepoint=NAME", or
    "latest" where what is left of `_latest` names one.
    """
    key, equals, value = wanted.partition("=")
    if wanted == LATEST:
        fitting = [_find_latest(found, url)]
    elif equals and key == "epoch":
        fitting = [candidate for candidate in found if str(candidate.epoch) == value]
    elif equals and key == "savepoint":
        fitting = [candidate for candidate in found if value in candidate.savepoints]
    elif equals and key == "at":
        raise IllegalArgumentError(
            f"{wanted:.60}: nothing proves which candidate was the committed one at that time: give an id, which "
            "`checkpointer repair` lists with the time that it was made"
        )
    else:
        is_id = ID_START.fullmatch(wanted) is not None
        if is_id and len(wanted) == WHOLE:
            return CheckpointId.parse(wanted)  # the repair itself says why that cannot be
        fitting = [c for c in found if wanted in c.savepoints or (is_id and begins(c.id, wanted))]
    if not fitting:
        raise CheckpointNotFoundError(
            f"{url}: {wanted!r:.80} is no candidate for a repair: `checkpointer repair` lists those there are"
        )
    if len(fitting) > 1:
        known = some(sorted(candidate.id for candidate in fitting))
        raise IllegalArgumentError(f"{wanted} could be {known}: give the whole id")
    return fitting[0].id


def _find_latest(found: Sequence[Candidate], url: str) -> Candidate:
    """Return the candidate that `_latest` names, unless that is an older copy which somebody put there."""
    named = next((candidate for candidate in found if candidate.committed), None)
    if named is None:
        raise CheckpointNotFoundError(
            f"{url}: nothing is left of `_latest` that says which checkpoint was the last: choose one by its id"
        )
    newest = max(candidate.id for candidate in found)
    if newest.sequence > named.id.sequence + 1:  # an attempt that failed is one above, and no more
        raise CheckpointNotFoundError(
            f"{url}: `_latest` names {named.id}, and {newest} was written after it: it is an old copy: choose one by "
            "its id"
        )
    return named
