"""The registry of stores: which folder here opens the roots of which protocols.

How to add a store:

1. Make the folder `checkpointer/storage/<name>/` with a class that keeps the contract of `base.Store`.
2. Let its `__init__.py` offer `open_root(location, options, settings)`, which does no I/O and imports no cloud package.
3. Add one line for it to `STORES` below, the extra of that name to `pyproject.toml`, and its client package to the
   overrides of mypy there if it has no types.
4. Let `tests/test_layers.py` allow that package in the layer `store`.
5. Add the names of environment variables that hold its credentials to `scrubbing.py`.
6. Start a server for it in `tests/servers.py` with a fixture `<name>_server` in `tests/conftest.py`, and add a place to
   `tests/storage/conftest.py`: the tests of conformance then run on it.
"""

from dataclasses import dataclass, replace
from enum import Enum


class Reach(Enum):
    """Who can see the roots of a store.

    It goes with how their URLs begin, and with whether writes can be conditional.
    """

    PROCESS = "process"
    """This process alone: the root is in its memory."""
    MACHINE = "machine"
    """The processes of this machine: the root is a folder, and its URL is a path."""
    CLOUD = "cloud"
    """Every machine: the root is in a bucket or container, named first in its URL. Writes can be conditional."""
    UNKNOWN = "unknown"
    """Depends on the file system that fsspec opens. Writes are not conditional."""


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store, described for code that would otherwise look at the names of protocols."""

    protocols: tuple[str, ...]
    """Protocols of its URLs, all of which mean the same store."""
    module: str
    """The folder that opens it, imported when the first root is opened."""
    reach: Reach = Reach.UNKNOWN
    """Who can see its roots."""
    package: str | None = None
    """The package that must be installed; the name of the folder is the extra that installs it."""
    has_accounts: bool = False
    """Whether its URLs may name an account, as in container@account."""


_BELOW = "pyspark_checkpointer.storage"

STORES = (
    StoreKind(("file", "local"), f"{_BELOW}.local", Reach.MACHINE),
    StoreKind(("memory",), f"{_BELOW}.memory", Reach.PROCESS),
    StoreKind(("s3", "s3a", "s3n"), f"{_BELOW}.s3", Reach.CLOUD, package="s3fs"),
    StoreKind(("abfs", "abfss", "az"), f"{_BELOW}.azure", Reach.CLOUD, package="adlfs", has_accounts=True),
)
"""All stores of this library, one a line."""

_ANY_OTHER = StoreKind((), f"{_BELOW}.fsspec_any")
"""The kind of all file systems that fsspec knows and no line above names."""


def kind_of(protocol: str) -> StoreKind:
    """Return the kind of store of a protocol; two protocols of one store give the same kind."""
    # The protocol is a part of the kind, so two file systems of fsspec are never taken for one store. Their options
    # differ.
    known = (kind for kind in STORES if protocol in kind.protocols)
    return next(known, None) or replace(_ANY_OTHER, protocols=(protocol,))
