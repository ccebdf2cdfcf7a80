"""The registry of stores: which folder below `checkpointer/storage/` opens the roots of which protocols.

How to add a store:

1. Make the folder `checkpointer/storage/<name>/` with a class that keeps the contract of `base.Store`.
2. Let its `__init__.py` offer `open_root(location, options, settings)`, which does no I/O and imports no cloud package.
3. Add one line for it to `STORES` below, and the extra of that name to `pyproject.toml`.
4. Add the names of environment variables that hold its credentials to `scrubbing.py`.
5. Add a place to `tests/storage/conftest.py`: the tests of conformance then run on it.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Describe the roots that one folder opens, for whoever would otherwise look at the names of protocols."""

    protocols: tuple[str, ...]
    """Protocols of its URLs, all of which mean the same store."""
    module: str
    """The folder that opens it, imported when the first root is opened."""
    package: str | None = None
    """The package that must be installed; the name of the folder is the extra that installs it."""
    is_cloud: bool = False
    """Whether it is a cloud's object store: its URLs begin with a bucket or container, and it puts under conditions."""
    has_accounts: bool = False
    """Whether its URLs may name an account, as in container@account."""
    is_of_this_machine: bool = False
    """Whether it is a folder, which other machines do not see."""
    is_in_memory: bool = False
    """Whether it is in the memory of this process, which other processes do not see."""


_BELOW = "pyspark_checkpointer.storage"

STORES = (
    StoreKind(("file", "local"), f"{_BELOW}.local", is_of_this_machine=True),
    StoreKind(("memory",), f"{_BELOW}.memory", is_in_memory=True),
    StoreKind(("s3", "s3a", "s3n"), f"{_BELOW}.s3", package="s3fs", is_cloud=True),
    StoreKind(("abfs", "abfss", "az"), f"{_BELOW}.azure", package="adlfs", is_cloud=True, has_accounts=True),
)
"""All stores of this library, one a line."""

_ANY_OTHER = StoreKind((), f"{_BELOW}.fsspec_any")
"""Opens what fsspec knows and no line above names."""


def kind_of(protocol: str) -> StoreKind:
    """Return the kind of store of a protocol; two protocols of one store give the same kind."""
    known = (kind for kind in STORES if protocol in kind.protocols)
    return next(known, None) or replace(_ANY_OTHER, protocols=(protocol,))
