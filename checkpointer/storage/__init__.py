"""Store whole objects: get, put, compare_and_swap, list, delete.

`open_store` is the way in.

* `base.py` is the contract that every store keeps;
* `registry.py` is the table of stores, and says how to add one;
* `request_path.py` is what each request passes through before it reaches a store;
* `encryption/` is no store: it encrypts for any of them, in front of that path;
* `signatures/` is no store either: it signs for any of them, in front of both;
* `compare_and_swap.py` finds out what became of a swap without an answer.
"""

import importlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    ListedObject,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    Settings,
    Store,
    WrappedStore,
    WriteLeftover,
)
from pyspark_checkpointer.storage.connection import require
from pyspark_checkpointer.storage.registry import Reach
from pyspark_checkpointer.storage.request_path import LimitedStore, PlainStore, RetryingStore
from pyspark_checkpointer.storage.url import Location, absolute, parse

if TYPE_CHECKING:
    from pyspark_checkpointer.storage.encryption.data_keys import DataKeys
    from pyspark_checkpointer.storage.encryption.store import Encryption
    from pyspark_checkpointer.storage.signatures.signing_keys import Signing

Fencing = Literal["required", "none"]

EncryptionOption: TypeAlias = "Encryption | str | None"
"""The provider of keys of an encrypted root, as callers give it; None for a root that is not encrypted."""

SigningOption: TypeAlias = "Signing | str | None"
"""The keys of a client of a signed root, as callers give them; None for a root that is not signed."""


def open_store(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    fencing: Fencing = "required",
    concurrency: int = 16,
    timeout: float = 60.0,
    encryption: "EncryptionOption" = None,
    signing: "SigningOption" = None,
) -> Store:
    """Return the store of a root.

    Does no I/O and imports no cloud package: both wait for the first request.

    Args:
        url: A folder, `file:///…`, `memory://name`, `s3://bucket/path`, `abfs://container/path`,
            `gs://bucket/path`, `dbfs:/Volumes/catalog/schema/volume/path`, or any other URL that fsspec knows
            (those with `fencing="none"` only).
        storage_options: What s3fs, adlfs or another fsspec file system takes, or `databricks/login.py`. Never shown or
            logged.
        fencing: "required" writes under conditions that the store keeps against every other writer; "none"
            writes without them, and two writers of one root can then overwrite each other.
        concurrency: Requests that may run at the same time; of small reads and writes sixteen times as many.
        timeout: Seconds for one small request; a large one gets a second more for each MiB.
        encryption: What opens the keys of an encrypted root: a text such as `"key-file:PATH"` or
            `"aws-kms:alias/NAME"`, or a provider of keys. None for a root that is not encrypted.
        signing: Whom to trust and what to sign with: a text such as `"trust:owner.pub,sign:driver.pem"`, or a
            `Signing`. None for a root that is not signed.

    Raises:
        IllegalArgumentError: The URL or an option cannot be right.
    """
    if fencing not in ("required", "none"):
        raise IllegalArgumentError(f"fencing={fencing!r:.40}: expected 'required' or 'none'")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise IllegalArgumentError(f"concurrency={concurrency!r:.40}: expected an integer of at least 1")
    # The comparison is false for NaN too, and the upper bound refuses infinity.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= threading.TIMEOUT_MAX:
        raise IllegalArgumentError(f"timeout={timeout!r:.40}: expected seconds, more than 0")
    if not isinstance(storage_options, Mapping | None):
        raise IllegalArgumentError(f"storage_options: expected a mapping, got {type(storage_options).__name__}")
    settings = Settings(fencing == "required", concurrency, timeout)
    store = open_root(parse(url), dict(storage_options or {}), settings)
    # In this order each attempt waits for a slot and has the whole time limit. The other way round, the pause before
    # the next attempt would keep a slot.
    limited = LimitedStore(store, concurrency=concurrency, timeout=timeout)
    markers = (object_paths.SIGNERS,) if signing is None else ()
    if encryption is None:
        opened: Store = PlainStore(limited, (object_paths.KEYS, *markers))
    else:
        opened = _encrypted(RetryingStore(limited), encryption, markers)
    return opened if signing is None else _signed(opened, signing)


def own_options(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return options with dicts and lists of their own.

    The caller may change and use the given ones again, and a store may be opened long after. Other values are shared:
    some, such as credentials, cannot be copied.
    """
    return None if given is None else {name: _own(value) for name, value in given.items()}


def _own(value: Any) -> Any:
    if type(value) is dict:
        return {name: _own(inner) for name, inner in value.items()}
    return [*map(_own, value)] if type(value) is list else value


def fix(encryption: EncryptionOption) -> EncryptionOption:
    """Return the provider of keys in a form that is valid in another process.

    A text names a file, perhaps relative to the present working directory. Raises `IllegalArgumentError` for a value
    that cannot open keys. The error does not repeat the value, as it may be a key.
    """
    if encryption is None:
        return None
    require("cryptography", "encryption", "encryption")
    from pyspark_checkpointer.storage.encryption.root_keys import as_encryption

    return as_encryption(encryption)


def fix_signing(signing: SigningOption) -> SigningOption:
    """Return whom to trust and what to sign with, as is valid in another process.

    Raises `IllegalArgumentError` for a value that names no keys. The error does not repeat the value.
    """
    if signing is None:
        return None
    require("cryptography", "encryption", "signing")
    from pyspark_checkpointer.storage.signatures.signing_keys import as_signing

    return as_signing(signing)


def _encrypted(store: Store, encryption: "Encryption | str", markers: Sequence[str]) -> Store:
    """Return a store whose objects are encrypted before they leave this process."""
    require("cryptography", "encryption", store.url)
    # Imported here: most roots are not encrypted, and the package takes long to import.
    from pyspark_checkpointer.storage.encryption.root_keys import as_encryption
    from pyspark_checkpointer.storage.encryption.store import EncryptedStore

    return EncryptedStore(store, as_encryption(encryption), markers)


def _signed(store: Store, signing: "Signing | str") -> Store:
    """Return a store that signs what it writes, and checks what it reads."""
    require("cryptography", "encryption", store.url)
    # Imported here, as above.
    from pyspark_checkpointer.storage.signatures.signing_keys import as_signing
    from pyspark_checkpointer.storage.signatures.store import SignedStore

    return SignedStore(store, as_signing(signing))


async def find_keys(store: Store) -> "DataKeys | None":
    """Return the opened keys of an encrypted root.

    Return None for a root that is not encrypted, or has no keys yet.
    """
    while isinstance(store, WrappedStore):
        # Asked by name: the class of encrypted roots needs a package that others may not have.
        find = getattr(store, "find_keys", None)
        if find is not None:
            found: DataKeys | None = await find()
            return found
        store = store.inner
    return None


def open_root(location: Location, options: Mapping[str, Any], settings: Settings) -> Store:
    """Open a root with the store of its kind alone.

    The store sends each request once, and has no limits. Raises `IllegalArgumentError` where the package of that store
    is not installed.
    """
    kind = location.kind
    # The store itself imports its package with the first request. A missing one is to be told now, with the command
    # that installs it.
    if kind.package is not None:
        require(kind.package, kind.module.rpartition(".")[2], location.url)
    store: Store = importlib.import_module(kind.module).open_root(location, options, settings)
    return store


def open_files(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None, fencing: Fencing = "none"
) -> Store:
    """Open a folder of files that are not ours, such as Spark's checkpoint location.

    Nothing is swapped there. With `fencing="required"` a put never overwrites a file, on stores that can refuse it.
    """
    # A local store would create its lock file in the folder, and another one cannot refuse anything.
    conditions = fencing if parse(location).kind.reach is Reach.CLOUD else "none"
    return open_store(location, storage_options, fencing=conditions)


def are_together(url: str | os.PathLike[str], root: str, options: Mapping[str, Any] | None = None) -> bool:
    """Return whether `url` is where `root` is.

    Both are folders, or both are in the same bucket, container or server. `options` are those of the root: they name
    its account where its URL does not.
    """
    there, here = parse(url), parse(root)
    if (there.kind, there.host) != (here.kind, here.host):
        return False
    if here.account_host is not None or there.account_host is None:
        return there.account_host == here.account_host
    # Where the account in the URL changes none of the options, what is sent there goes to the root's own account.
    account = importlib.import_module(there.kind.module).account_of(there)
    return all((options or {}).get(name) == value for name, value in account.items())


def options_near(url: str | os.PathLike[str], root: str, options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of `root` for a `url` of the same service, else None.

    They hold secrets, which no other account and no other server may get.
    """
    there, here = parse(url), parse(root)
    if there.kind != here.kind:
        return None
    # A bucket of a cloud is no server: the same service has all of them. Where one of the two names no account, the
    # options do.
    if there.kind.reach is Reach.CLOUD:
        return options if len({there.account_host, here.account_host} - {None}) < 2 else None
    return options if there.host == here.host else None


__all__ = [
    "SWAP_LIMIT",
    "Blob",
    "EncryptionOption",
    "Fencing",
    "ListedObject",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "PreconditionFailedError",
    "SigningOption",
    "Store",
    "WriteLeftover",
    "absolute",
    "are_together",
    "find_keys",
    "fix",
    "fix_signing",
    "open_store",
    "options_near",
    "own_options",
    "parse",
]
