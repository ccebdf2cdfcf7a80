"""Register the stores: which folder here opens the roots of which protocols.

How to add a store:

1. Make the folder `checkpointer/storage/<name>/` with a class that keeps the contract of `base.Store`. A store of
   a cloud is a `CloudStore` (`cloud_store.py`): it writes the requests only, as `gcs/store.py` does. One that sends
   requests of its own, and does not call a client of the cloud, takes `http.py` and `cloud.py` for what they share.
2. Let its `__init__.py` offer `open_root(location, options, settings)`, which does no I/O and imports no cloud package.
3. Add an entry for it to `STORES` below: with `environment`, so that its credentials are hidden, and with its list
   prices as `costs` if it is paid for, with `volume` if its roots are in no bucket, and with `fenced_by`. Messages and
   the help of the command then name it. If it needs a package, add the extra of that name to `pyproject.toml`, there
   also to the group `dev`, and to `EXTRAS` in `tests/test_imports.py`; and the package to the overrides of mypy in
   `pyproject.toml` if it has no types.
4. Let `tests/test_layers.py` allow that package in the layer `store`.
5. The tests use `oss` as a protocol that no line here names (`tests/storage/test_registry.py`,
   `tests/storage/test_url.py`). If this is the store of `oss`, choose another one there.
6. Start a server for it in `tests/servers.py` with a fixture `<name>_server` in `tests/conftest.py`, by which
   `any_root` there finds it. Add its kind to `CONDITIONAL` in `tests/storage/conftest.py`, or to `EVERY` if its writes
   cannot be conditional: the tests of conformance then run on it. `tests/storage/test_bucket_rules.py`,
   `tests/storage/test_rotation.py` and `tests/storage/test_throttling.py` have cases for each cloud. What this one
   alone answers is tested in `tests/storage/<name>/`. `python -m pytest tests/storage` runs them all.
7. Name it in the table of stores in `docs/stores.md`, its extra in the table of extras in `README.md`, its package in
   `docs/submitting.md` and in `.github/ISSUE_TEMPLATE/bug.md`, its permissions and the rules of its buckets in
   `docs/operations.md`, and the server that it was tested on in `docs/guarantees.md` and `docs/performance.md`.
   `git grep abfs://container` finds the docstrings and pages that list roots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal


class Reach(Enum):
    """The machines and processes that can see the roots of a store.

    It also tells how the URLs of the roots begin, and whether writes can be conditional.
    """

    PROCESS = "process"
    """This process alone: the root is in its memory."""
    MACHINE = "machine"
    """The processes of this machine: the root is a folder, and its URL is a path."""
    CLOUD = "cloud"
    """Every machine can reach the root: it is in a bucket or container.

    The URL names the bucket or container first. Writes can be conditional.
    """
    UNKNOWN = "unknown"
    """Depends on the file system that fsspec opens. Writes are not conditional."""


PriceClass = Literal["put", "get", "delete", "gb"]
"""The kinds of use that have a price.

`put` is PUT, POST and LIST; `get` is GET and HEAD; `delete` is DELETE; `gb` is a gigabyte (2^30 bytes) that is kept for
a month.
"""


@dataclass(frozen=True, slots=True)
class StoreCosts:
    """The list prices of a kind of store, for `checkpointer cost`.

    It also says how many requests some of its work takes.
    """

    name: str
    """Whose prices these are, in which region, and of which month."""
    prices: Mapping[PriceClass, float]
    """In US dollars, for 1,000 requests of a class, or for a gigabyte."""
    page: int
    """Objects that one request lists, at most."""
    deleted_at_once: int
    """Objects that one request deletes, at most."""
    lists_uploads: bool
    """True if cleanup asks for uploads that were broken off, with one request."""


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store and its properties.

    Code reads them here and does not look at the names of protocols.
    """

    protocols: tuple[str, ...]
    """Protocols of its URLs, all of which mean the same store."""
    module: str
    """The folder that opens it, imported when the first root is opened."""
    reach: Reach = Reach.UNKNOWN
    """The machines and processes that can see its roots."""
    package: str | None = None
    """The package that must be installed.

    The name of the folder is the extra that installs it.
    """
    environment: str | None = None
    """The beginning of the names of its environment variables.

    Values of variables with a key, secret, token or password are left out of every message.
    """
    credentials: str | None = None
    """Whose way of finding credentials the store follows, where it is not that of the package."""
    has_accounts: bool = False
    """True if its URLs may name an account, as in container@account.

    Its folder then offers `account_of(location)`, the options that such a URL stands for.
    """
    volume: str | None = None
    """The path of a volume, by the names of its parts, where its roots are in volumes and not in buckets.

    Its URLs have one slash, as in dbfs:/Volumes/…, and its machines mount its volumes at this path.
    """
    costs: StoreCosts | None = None
    """Its costs; None where no prices are known."""
    fenced_by: str | None = None
    """The means by which a swap excludes other writers; None where it does not."""


_BELOW = "pyspark_checkpointer.storage"

_S3_COSTS = StoreCosts(
    "list prices of S3 Standard in us-east-1, noted in January 2025",
    {"put": 0.005, "get": 0.0004, "delete": 0.0, "gb": 0.023},
    page=1000,
    deleted_at_once=1000,
    lists_uploads=True,
)
_AZURE_COSTS = StoreCosts(
    "list prices of Azure Blob Storage, hot, LRS, in East US, noted in January 2025",
    {"put": 0.005, "get": 0.0004, "delete": 0.0, "gb": 0.0208},
    page=5000,
    deleted_at_once=1,
    lists_uploads=False,
)

_GCS_COSTS = StoreCosts(
    "list prices of Google Cloud Storage, Standard, in us-central1, noted in January 2025",
    {"put": 0.005, "get": 0.0004, "delete": 0.0, "gb": 0.02},
    page=1000,
    deleted_at_once=1,
    lists_uploads=False,
)

STORES = (
    StoreKind(
        ("file", "local"), f"{_BELOW}.local", Reach.MACHINE, fenced_by="`flock` on this machine, link and rename"
    ),
    StoreKind(("memory",), f"{_BELOW}.memory", Reach.PROCESS, fenced_by="a lock of this process"),
    StoreKind(
        ("s3", "s3a", "s3n"),
        f"{_BELOW}.s3",
        Reach.CLOUD,
        package="s3fs",
        environment="AWS",
        costs=_S3_COSTS,
        fenced_by="conditions on ETags (If-Match, If-None-Match)",
    ),
    StoreKind(
        ("abfs", "abfss", "az"),
        f"{_BELOW}.azure",
        Reach.CLOUD,
        package="adlfs",
        environment="AZURE",
        has_accounts=True,
        costs=_AZURE_COSTS,
        fenced_by="conditions on ETags (If-Match, If-None-Match)",
    ),
    StoreKind(
        ("gs", "gcs"),
        f"{_BELOW}.gcs",
        Reach.CLOUD,
        package="gcsfs",
        environment="GOOGLE",
        costs=_GCS_COSTS,
        fenced_by="conditions on generations (ifGenerationMatch)",
    ),
    StoreKind(
        ("dbfs",),
        f"{_BELOW}.databricks",
        Reach.CLOUD,
        package="aiohttp",
        environment="DATABRICKS",
        credentials="the tools of Databricks",
        volume="/Volumes/catalog/schema/volume",
        fenced_by="conditions on ETags (If-Match, If-None-Match)",
    ),
)
"""All stores of this library."""

_ANY_OTHER = StoreKind((), f"{_BELOW}.fsspec_any")
"""The kind of all file systems that fsspec knows and no line above names."""


def folder_of(kind: StoreKind) -> str:
    """Return the name of a kind's folder.

    Extras and `checkpointer cost --store` use this name.
    """
    return kind.module.rpartition(".")[2]


def known_protocols() -> str:
    """Return how the URLs of all stores begin.

    An error that refuses another beginning shows it.
    """
    return ", ".join(_beginning(kind, protocol) for kind in STORES for protocol in kind.protocols)


def _beginning(kind: StoreKind, protocol: str) -> str:
    """Return how the URLs of a store begin."""
    return f"{protocol}:{volumes_of(kind)}" if kind.volume else f"{protocol}://"


def volumes_of(kind: StoreKind) -> str:
    """Return the folder of all volumes of a kind of store, with a slash at its end."""
    assert kind.volume is not None
    return f"/{kind.volume.split('/')[1]}/"


def cloud_roots() -> list[str]:
    """Return a root in each cloud as users write it.

    Errors and the help of the command show it.
    """
    return [_example(kind) for kind in STORES if kind.reach is Reach.CLOUD]


def _example(kind: StoreKind) -> str:
    if kind.volume:
        return f"{kind.protocols[0]}:{kind.volume}/path"
    return f"{kind.protocols[0]}://{'container' if kind.has_accounts else 'bucket'}/path"


def credential_finders() -> list[str]:
    """Return who finds credentials in the environment as the stores do."""
    return [kind.credentials or kind.package for kind in STORES if kind.package]


def enumerate_words(words: list[str], last: str) -> str:
    """Return several words as a list in a sentence.

    `last`, which is "and" or "or", is before the last word.
    """
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def store_kind_of(protocol: str) -> StoreKind:
    """Return the kind of store of a protocol.

    Two protocols of one store give the same kind.
    """
    # The protocol is a part of the kind, so two file systems of fsspec are never taken for one store. Their options
    # differ.
    known = (kind for kind in STORES if protocol in kind.protocols)
    return next(known, None) or replace(_ANY_OTHER, protocols=(protocol,))
