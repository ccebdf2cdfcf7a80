"""Share the configuration and the sessions of both checkpointers."""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pyspark_checkpointer.checkpoint.fencing import inherited
from pyspark_checkpointer.checkpoint.metrics import MetricsCallback
from pyspark_checkpointer.checkpoint.migration import Migration, Transform
from pyspark_checkpointer.checkpoint.restore import Migrate
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Operator
from pyspark_checkpointer.runtime import forks, run_sync
from pyspark_checkpointer.runtime.host import Host, SystemHost
from pyspark_checkpointer.runtime.user_functions import runs_nothing
from pyspark_checkpointer.storage import (
    EncryptionOption,
    Fencing,
    SigningOption,
    absolute,
    fix,
    fix_signing,
    open_store,
    own_options,
)
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.connection import is_installed

if TYPE_CHECKING:
    from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation

T = TypeVar("T")

logger = logging.getLogger("pyspark_checkpointer")
_unfenced = set[str]()  # Roots that a warning named. It comes once: a batch makes a client for each root that it reads.

MIN_CHAIN = 2


def check_flags(**given: object) -> None:
    """Refuse a flag that is neither True nor False: the text "false" would be True."""
    for name, flag in given.items():
        if not isinstance(flag, bool):
            raise IllegalArgumentError(f"{name}={flag!r:.40}: expected True or False")


def check_names(**given: object) -> None:
    """Refuse a text where a list of names is expected.

    It would be read as its letters.
    """
    for name, names in given.items():
        if isinstance(names, str):
            # Without the text, which may be a key.
            raise IllegalArgumentError(
                f"{name}: expected a list, as in {name}=[…], got a text of {len(names)} characters"
            )


async def check_table(store: Store, host: Host, name: str, operator: Operator, artifact: Artifact) -> None:
    """Check that the keys of a table's object are in their partitions.

    Does nothing if pyarrow is not installed.
    """
    if not is_installed("pyarrow"):
        return
    from pyspark_checkpointer.table.places import check_places  # pyarrow, only for those who use tables

    await check_places(store, host, name, operator, artifact)


@dataclass(frozen=True, slots=True)
class _Config:
    root: str
    """Absolute: a task, a copy or a later moment must not resolve it anew."""
    storage_options: dict[str, Any] | None = field(repr=False)
    fencing: Fencing
    max_chain: int
    concurrency: int
    timeout: float
    encryption: EncryptionOption = field(repr=False)
    signing: SigningOption = field(repr=False)


class Client:
    """Configuration of a root, and the session that this process has on it.

    Pickles as its configuration only: such a copy starts as if it had just been made. A forked child has a session of
    its own, which goes on from what the session of its parent stood on.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        fencing: Fencing = "required",
        max_chain: int = 10,
        concurrency: int = 16,
        timeout: float = 60.0,
        metrics: MetricsCallback | None = None,
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
    ) -> None:
        """Check the configuration.

        Nothing is connected before the first call. The class describes the arguments.
        """
        if isinstance(max_chain, bool) or not isinstance(max_chain, int) or max_chain < MIN_CHAIN:
            raise IllegalArgumentError(f"max_chain={max_chain!r:.40}: expected an integer of at least {MIN_CHAIN}")
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise IllegalArgumentError(  # its value may be a secret
                "storage_options: expected a dict of options of the file system, as in {'key': …}, not "
                f"{type(storage_options).__name__}"
            )
        options = own_options(storage_options)
        if metrics is not None and (not callable(metrics) or runs_nothing(metrics)):
            raise IllegalArgumentError(f"metrics={metrics!r:.40}: expected a function of one record, or None")
        self._metrics = metrics
        self._config = _Config(
            absolute(root), options, fencing, max_chain, concurrency, timeout, fix(encryption), fix_signing(signing)
        )
        self._open_sessions()
        if fencing == "none" and self._url not in _unfenced:
            _unfenced.add(self._url)
            logger.warning("%s: fencing is off: two writers of this root can overwrite each other", self._url)

    def _open_sessions(self) -> None:
        self._sessions: dict[forks.Process, Session] = {}
        """The sessions of the processes that this one was forked from, each after its parent's, and its own."""
        self._url = self.session.store.url

    def _open_session(self) -> Session:
        config = self._config
        return self._connect(config.root, config.storage_options, config.fencing, config.encryption, config.signing)

    def _connect(
        self,
        root: str | os.PathLike[str],
        options: Mapping[str, Any] | None,
        fencing: Fencing,
        encryption: EncryptionOption,
        signing: SigningOption,
    ) -> Session:
        """Return a session of this configuration, here or on another root."""
        config = self._config
        store = open_store(
            root,
            options,
            fencing=fencing,
            concurrency=config.concurrency,
            timeout=config.timeout,
            encryption=encryption,
            signing=signing,
        )
        return Session(store, SystemHost(), max_chain=config.max_chain, metrics=self._metrics)

    def spark_location(
        self, location: str | os.PathLike[str] | None, options: Mapping[str, Any] | None
    ) -> "SparkCheckpointLocation":
        """Return Spark's checkpoint of the query that writes this root.

        For other packages of this library.
        """
        # Imported here: only rewind and fork need it.
        from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation

        config = self._config
        return SparkCheckpointLocation(fixed(location), options, config.storage_options, config.fencing, self.is_signed)

    @property
    def session(self) -> Session:
        """The layer below, for other packages of this library."""
        if (found := self._sessions.get(forks.current)) is not None:
            return found
        session = self._open_session()
        if older := [*self._sessions.values()]:
            session.stand_on(inherited(older[-1].standing))
        # `setdefault`, because two threads of a child may open one at the same time: both must go on with the same.
        return self._sessions.setdefault(forks.current, session)

    @property
    def root(self) -> str:
        """The root as a URL or path, without secrets."""
        return self._url

    def copy(self) -> Self:
        """Return another client of the same configuration, which has restored nothing yet.

        Examples:
            >>> reader = ck.copy()
            >>> reader.root == ck.root
            True
        """
        # Without `__init__`, which would resolve the root again, and warn again where fencing is off.
        twin = object.__new__(type(self))
        twin._set_up(self._config, self._metrics)
        return twin

    @property
    def is_signed(self) -> bool:
        """True if this client was opened for a signed root."""
        return self._config.signing is not None

    @property
    def command_options(self) -> str:
        """The options by which the command line opens this root; empty if none."""
        config = self._config
        needs = {
            "--encryption": config.encryption is not None,
            "--signing": config.signing is not None,
            "--fencing none": config.fencing == "none",
        }
        return ", ".join(option for option, is_needed in needs.items() if is_needed)

    def for_tasks(self) -> Self:
        """Return a client for tasks of the job, for other packages of this library.

        It has the keys of an encrypted root themselves. It signs nothing, and checks no signatures: the driver does,
        and tasks read and write only what its manifests name by digest.
        """
        config = self._config
        if config.encryption is None and config.signing is None:
            return self
        if config.encryption is not None:
            # Imported here: only an encrypted root needs the package for it.
            from pyspark_checkpointer.storage.encryption.root_keys import keys_of

            config = replace(config, encryption=run_sync(keys_of(self.session.store)))
        twin = object.__new__(type(self))
        twin._set_up(replace(config, signing=None), None)
        return twin

    def _set_up(self, config: _Config, metrics: MetricsCallback | None) -> None:
        self._config, self._metrics = config, metrics
        self._open_sessions()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def __getstate__(self) -> dict[str, Any]:
        # A session belongs to this process and its event loop, and so does the metrics callback: neither travels.
        return {"_config": self._config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(state["_config"], None)


C = TypeVar("C", bound=Client)


def opens_keys(client: Client) -> bool:
    """Return whether a client opens the keys of an encrypted root."""
    return client._config.encryption is not None


def metrics_of(client: Client) -> MetricsCallback | None:
    """Return the function that gets the metrics of a client."""
    return client._metrics


def measured_by(client: C, metrics: MetricsCallback) -> C:
    """Return a copy of a client, with another function that gets the metrics."""
    twin = client.copy()
    twin._set_up(client._config, metrics)
    return twin


def fixed(location: str | os.PathLike[str] | None) -> str | None:
    """Resolve a location against the caller's current working directory.

    The location was written for that directory, which may change later.
    """
    if location == "":
        raise IllegalArgumentError("the location is empty: give a path or URL, or leave it out to use the recorded one")
    return None if location is None else absolute(location)


def as_migration(
    rename: Mapping[str, str] | None, drop: Iterable[str] | None, transform: Mapping[str, Transform] | None
) -> Migrate | None:
    """Return the migration that `restore` is asked for, or None."""
    if rename is None and drop is None and transform is None:
        return None
    migration = Migration(rename, drop, transform, _transform_table)
    return migration.run if migration else None


async def _transform_table(*given: Any) -> Operator:
    from pyspark_checkpointer.table.migration import transform  # pyarrow, only for those who use tables

    return await transform(*given)


def as_id(checkpoint: CheckpointId | str) -> CheckpointId:
    """Return an id, also from its text."""
    return checkpoint if isinstance(checkpoint, CheckpointId) else CheckpointId.parse(checkpoint)


def as_selector(wanted: CheckpointId | str | None) -> CheckpointSelector:
    """Return which checkpoint a caller means, by default the committed one."""
    return CheckpointSelector(LATEST) if wanted is None else CheckpointSelector.parse(wanted)


def as_bytes(data: object) -> bytes:
    """Return the caller's bytes as they are now.

    Later changes to a buffer do not reach the store.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise IllegalArgumentError(
        f"expected bytes, got {type(data).__name__}: encode it first, or use save() for a KeyedState"
    )
