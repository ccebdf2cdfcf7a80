"""Define the base of the consumers' public classes.

The base has the configuration of a store. Each process opens the store anew.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.runtime import forks, per_process
from pyspark_checkpointer.runtime.host import SystemHost
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The location of the positions, and how its store is used.

    `pyspark_checkpointer.Checkpointer` has the fields.

    Objects that share one `StoreConfig` share its connections, in each process.
    """

    url: str | os.PathLike[str]
    storage_options: Mapping[str, Any] | None = field(repr=False)
    fencing: Fencing = "required"
    concurrency: int = 16
    timeout: float = 60.0
    encryption: EncryptionOption = field(default=None, repr=False)
    signing: SigningOption = field(default=None, repr=False)
    _opened: dict[forks.Process, StoreContext] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The path is resolved once: another process opens it anew, perhaps in another working directory.
        object.__setattr__(self, "url", absolute(self.url))
        # What is no mapping is refused where the store is opened.
        if isinstance(self.storage_options, Mapping):
            object.__setattr__(self, "storage_options", own_options(self.storage_options))
        object.__setattr__(self, "encryption", fix(self.encryption))
        object.__setattr__(self, "signing", fix_signing(self.signing))

    def open(self) -> StoreContext:
        """Return the store of this process; the first call in a process opens it."""
        return per_process(self._opened, self._open)

    def _open(self) -> StoreContext:
        store = open_store(
            self.url,
            self.storage_options,
            fencing=self.fencing,
            concurrency=self.concurrency,
            timeout=self.timeout,
            encryption=self.encryption,
            signing=self.signing,
        )
        return StoreContext(store, SystemHost())

    def __reduce__(self) -> tuple[Any, ...]:
        # Connections cannot be pickled, so only the configuration is.
        given = (self.url, self.storage_options, self.fencing, self.concurrency, self.timeout)
        return StoreConfig, (*given, self.encryption, self.signing)


class StoreClient(Generic[T]):
    """A public class whose work is done by a core of type `T`.

    Each process makes a core of its own. An object of this class pickles as its configuration. In another process, a
    forked one too, it starts as if it had just been made.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._cores: dict[forks.Process, T] = {}
        # Subclasses call this `__init__` last, since `_make_core` reads the attributes that they set.
        _ = self._core  # A wrong configuration is refused here, and not by the first call.

    def _make_core(self, context: StoreContext) -> T:
        """Return the object that does the work in this process."""
        raise NotImplementedError

    @property
    def _core(self) -> T:
        return per_process(self._cores, lambda: self._make_core(self._config.open()))

    def __getstate__(self) -> dict[str, Any]:
        # Cores have connections, locks and an event loop's tasks, none of which another process can use.
        return vars(self) | {"_cores": {}}


class ClosingContext:
    """A context manager that calls `close()` at the end of its `with` block."""

    def close(self) -> None:
        """Release the resources of this object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
