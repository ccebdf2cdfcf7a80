"""Ask, before a root is encrypted, whether that can be done to the end."""

from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import InvalidStateError, StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import ENCRYPTED
from pyspark_checkpointer.storage.base import SWAP_LIMIT, Store, pages
from pyspark_checkpointer.storage.compare_and_swap import find_object
from pyspark_checkpointer.storage.encryption.store import EncryptedStore
from pyspark_checkpointer.storage.encryption.stored_names import check_length
from pyspark_checkpointer.storage.request_path import unmarked
from pyspark_checkpointer.storage.signatures.signers import unsigned
from pyspark_checkpointer.storage.signatures.signing_keys import Signing
from pyspark_checkpointer.storage.signatures.store import SignedStore


async def open_below_signatures(session: Session) -> tuple[Store, Signing | None]:
    """Return a root below its signatures, and what it is signed with.

    Raises an error for a signed root where this client may not sign a new version of `_latest`.
    """
    signed = session.store if isinstance(session.store, SignedStore) else None
    # An earlier call may have made the keys of a root without `_latest`.
    below = unmarked(session.store if signed is None else signed.inner)
    # Below the encryption: once an interrupted call has committed, the keys of this client open nothing.
    stored = below.inner if isinstance(below, EncryptedStore) else below
    is_signed = await find_object(stored, object_paths.SIGNERS, SWAP_LIMIT) is not None
    if signed is None:
        if is_signed:
            raise InvalidStateError(
                f"{stored.url}: is signed: say what it is signed with, as in signing='trust:owner.pub,sign:driver.pem'"
            )
        return below, None
    if not is_signed:
        raise InvalidStateError(unsigned(stored))
    latest = await find_object(stored, object_paths.LATEST, SWAP_LIMIT)
    # What an earlier call has committed opens with the new keys alone, and is not signed again.
    if latest is not None and (below is not stored or not latest.data.startswith(ENCRYPTED)):
        try:
            await signed.get(object_paths.LATEST, limit=SWAP_LIMIT)
        except StoreRefusedError:
            raise
        except InvalidStateError:
            pass  # other keys: of an earlier call, or `change_keys` says why
        else:
            await signed.check_may_write(object_paths.LATEST)
    return below, signed.signing


async def check_names(store: Store) -> None:
    """Raise `IllegalArgumentError` for a root with a name that is too long to hide.

    Done before its keys say that they are hidden: nothing could finish the work then.
    """
    folders = list(await store.folders(object_paths.ARTIFACTS))
    async for entries in pages(store, object_paths.CONSUMERS):
        folders += [entry.path for entry in entries]
    for path in folders:
        for part in path.split("/"):
            check_length(part.removesuffix(".json"))


__all__ = ["check_names", "open_below_signatures"]
