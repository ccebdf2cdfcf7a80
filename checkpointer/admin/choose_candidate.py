"""Choose the candidate of a repair that a selector names.

Selectors have the grammar of `checkpoint.resolve`. There is no history to ask, only what manifests and
catalogs say, and an attempt that was never committed is a candidate too. So a selector that fits several candidates is
refused, and so is a time.
"""

from collections.abc import Sequence

from pyspark_checkpointer.admin.repair_candidates import Candidate
from pyspark_checkpointer.checkpoint.resolve import LATEST, CheckpointSelector, begins
from pyspark_checkpointer.display import some
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId


def choose_candidate(found: Sequence[Candidate], url: str, wanted: CheckpointSelector) -> CheckpointId:
    """Return the candidate that `wanted` selects.

    "latest" selects the candidate that the remains of `_latest` name.
    """
    if wanted.id is not None:
        return wanted.id  # Not checked here: the repair says why an id cannot be.
    if wanted.kind == LATEST:
        return _find_latest(found, url).id
    if wanted.kind == "at":
        raise IllegalArgumentError(
            f"{wanted}: nothing proves which candidate was the committed one at that time: give an id, which "
            "`checkpointer repair` lists with the time that it was made"
        )
    fitting = [candidate for candidate in found if _fits(candidate, wanted)]
    if not fitting:
        raise CheckpointNotFoundError(
            f"{url}: {str(wanted)!r:.80} is no candidate for a repair: `checkpointer repair` lists the candidates"
        )
    # Two attempts may have one epoch, and nothing proves which was committed: the caller has to say.
    if len(fitting) > 1:
        known = some(sorted(candidate.id for candidate in fitting))
        raise IllegalArgumentError(f"{wanted} could be {known}: give the whole id")
    return fitting[0].id


def _fits(candidate: Candidate, wanted: CheckpointSelector) -> bool:
    """Return whether a candidate fits the selector.

    It fits by its epoch, by a savepoint, or by the beginning of its id.
    """
    if wanted.kind == "epoch":
        return candidate.epoch == wanted.value
    if wanted.value in candidate.savepoints:
        return True
    return wanted.kind == "beginning" and begins(candidate.id, str(wanted.value))


def _find_latest(found: Sequence[Candidate], url: str) -> Candidate:
    """Return the candidate that `_latest` names.

    Raises where `_latest` is an older copy that somebody put there.
    """
    named = next((candidate for candidate in found if candidate.committed), None)
    if named is None:
        raise CheckpointNotFoundError(
            f"{url}: `_latest` no longer says which checkpoint was the last one: choose one by its id"
        )
    newest = max(candidate.id for candidate in found)
    # A failed attempt is one above the committed checkpoint. Anything higher was begun on a newer `_latest`.
    if newest.sequence > named.id.sequence + 1:
        raise CheckpointNotFoundError(
            f"{url}: `_latest` names {named.id}, and {newest} was written after it, so it is an old copy: "
            "choose one by its id"
        )
    return named
