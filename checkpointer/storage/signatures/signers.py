"""Read, make and change the list of those whose signatures count in a root.

The object `_signers` has it, signed by an owner. It is replaced only by a swap.
"""

import secrets

from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    InvalidStateError,
    MalformedError,
    UntrustedError,
)
from pyspark_checkpointer.manifests.signatures_json import (
    MAX_SIGNERS,
    SIGNERS,
    Header,
    Signers,
    decode_signed,
    decode_signers,
    encode_header,
    encode_signed,
    encode_signers,
    signed_message,
)
from pyspark_checkpointer.storage.base import Blob, Store, UndecryptableError, holds_beside
from pyspark_checkpointer.storage.compare_and_swap import find_object, swap_or_explain
from pyspark_checkpointer.storage.signatures.freshness import Newest
from pyspark_checkpointer.storage.signatures.signing_keys import Signing, SigningKey, is_signed_by, sign

LISTS: Newest[int] = Newest()
"""The newest version of each list of signers."""


async def find_signers(store: Store, signing: Signing) -> tuple[Signers, Blob] | None:
    """Return the list of signers and its object; None where there is none.

    Raises `UntrustedError` where no owner signed it whom the client trusts, where an older list was put back, and where
    it is of another root than the client names.
    """
    name = (store.url, SIGNERS)
    seen = LISTS.seen(name)
    try:
        blob = await find_object(store, SIGNERS, MAX_SIGNERS)
    except UndecryptableError as error:
        raise _unreadable(store, error) from None
    if blob is None:
        if signing.root is not None or signing.at_least > 1:
            raise UntrustedError(
                f"{store.url}: has lost its {SIGNERS}, which this client was told to find: bring that back from a copy"
            )
        return None
    try:
        signed = decode_signed(SIGNERS, blob.data)
        found, key = decode_signers(signed.content), signed.header.key
    except MalformedError as error:
        raise _unreadable(store, error) from None
    if key not in signing.trust or not is_signed_by(key, signed.signature, signed.message(found.root_id, SIGNERS)):
        trusted = ", ".join(f"{one[:16]}…" for one in signing.trust)
        raise UntrustedError(
            f"{store.url}/{SIGNERS}: no owner signed it whom this client trusts ({trusted}); it names the key "
            f"{key[:16]}…: trust that one if it is the owner's, or bring back {SIGNERS} from a copy"
        )
    if signing.root not in (None, found.root_id):
        raise UntrustedError(
            f"{store.url}/{SIGNERS}: is the list of the root {found.root_id}, and this client was told to open "
            f"{signing.root}: another root of the same owner was put here"
        )
    newest = max(signing.at_least, seen.get(found.root_id, 1))
    if found.version < newest:
        raise UntrustedError(
            f"{store.url}/{SIGNERS}: is version {found.version} of the list of signers, and version {newest} is known: "
            "an older list was put back"
        )
    LISTS.see(name, found.root_id, found.version)
    return found, blob


def _unreadable(store: Store, error: CorruptionError) -> UntrustedError:
    """Return the error of a list that cannot be read.

    It has no version: that of the list is none on which a repair of `_latest` could swap.
    """
    why = str(error).removeprefix(f"{SIGNERS}: ")
    return UntrustedError(f"{store.url}/{SIGNERS}: {why}: bring it back from a copy")


async def begin_signers(store: Store, signing: Signing) -> Signers:
    """Make the list of a new root, whose owner is this client.

    Raises `InvalidStateError` for a root that holds something, or a client that is no owner.
    """
    if await holds_others(store):
        # Another client may have begun the root since its list was looked for.
        found = await find_signers(store, signing)
        if found is None:
            raise InvalidStateError(unsigned(store))
        return found[0]
    if signing.key is None or signing.key.public_key not in signing.trust:
        raise InvalidStateError(
            f"{store.url}: has no list of signers, and this client has no key of an owner: make one with `checkpointer "
            "signers`"
        )
    await swap_signers(store, signing.key, Signers(secrets.token_hex(16), 1), None)
    # Another client may have made it at the same moment: what is there now counts.
    found = await find_signers(store, signing)
    if found is None:
        raise ConflictError(f"{store.url}: {SIGNERS} was written and removed by others at the same time: try again")
    return found[0]


async def swap_signers(store: Store, owner: SigningKey, signers: Signers, expected: str | None) -> bool:
    """Swap the list, signed by an owner, and return whether that took effect."""
    line, content = encode_header(Header(owner.public_key)), encode_signers(signers)
    signature = sign(owner, signed_message(signers.root_id, SIGNERS, line, content))
    data = encode_signed(line, signature, content)
    unknown = (
        f"{store.url}: a swap of {SIGNERS} was sent and nothing proves whether it took effect: look at the list, "
        "and try again"
    )
    return await swap_or_explain(store, SIGNERS, data, expected, MAX_SIGNERS, unknown)


async def holds_others(store: Store) -> bool:
    """Return whether a root holds anything but the list of signers."""
    return await holds_beside(store, SIGNERS)


def unsigned(store: Store) -> str:
    """Return the message for a root without a list of signers."""
    return (
        f"{store.url}: is not signed, or has lost its {SIGNERS}. If it was signed, bring that back from a copy. If not,"
        " leave out signing to read it, or have it signed with `checkpointer signers`"
    )


__all__ = ["begin_signers", "find_signers", "holds_others", "swap_signers", "unsigned"]
