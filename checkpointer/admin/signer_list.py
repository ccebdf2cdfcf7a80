"""Plan the next list of signers: who is allowed from now on, and who is revoked.

`signers.py` signs and swaps the list.
"""

from collections.abc import Collection

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.signatures_json import Signer, Signers


def allowed(signers: Signers, allow: Collection[Signer]) -> dict[str, Signer]:
    """Return the signers with those who are allowed from now on."""
    planned = dict(signers.signers)
    for one in allow:
        known = planned.get(one.key)
        if known is not None and set(known.roles) - set(one.roles):
            raise IllegalArgumentError(
                f"{one.name!r:.60}: {'may' if known.through is None else 'could'} {' and '.join(known.roles)} already: "
                "what it signed so far would not count any more: "
                f"{'revoke it, and allow' if known.through is None else 'allow'} a new key"
            )
        cleans = known is not None and known.through is None and "clean" in known.roles and "commit" not in known.roles
        if cleans and "commit" in one.roles:
            raise IllegalArgumentError(
                f"{one.name!r:.60}: may clean, and its `_latest` would not count any more if it might commit too: "
                "revoke it first, or allow a new key"
            )
        namesake = next((other for other in planned.values() if other.name == one.name and other.key != one.key), None)
        if namesake is not None and namesake.through is None:
            raise IllegalArgumentError(
                f"{one.name!r:.60}: another signer has this name: revoke that, or choose another"
            )
        planned[one.key] = one
    return planned


def find_named(signers: Signers, revoke: Collection[str]) -> list[str]:
    """Return the keys of signers that names or keys name.

    Where they name nobody else, they name those who are revoked already: an earlier call may not have finished.
    """
    gone = []
    for given in revoke:
        named = [one for one in signers.signers.values() if given in (one.name, one.key)]
        found = [one.key for one in named if one.through is None] or [one.key for one in named]
        if not found:
            raise IllegalArgumentError(f"{given!r:.80}: is no signer: there are {_names(signers)}")
        gone += found
    return gone


def _names(signers: Signers) -> str:
    """Return the names of all signers.

    Those who are revoked are among them, as each may be meant.
    """
    known = [f"{one.name!r:.60}" + ("" if one.through is None else ", revoked") for one in signers.signers.values()]
    return "; ".join(known) or "none"


__all__ = ["allowed", "find_named"]
