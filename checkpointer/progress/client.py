"""What the consumers' interfaces have in common: the configuration of a root, and its objects in each process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from checkpointer.host import SystemHost
from checkpointer.progress.document import Space
from checkpointer.store import Fencing, open_store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Root:
    """Where positions are kept, and how that store is used. See `checkpointer.Checkpointer` for the fields.

    Those who have the same `Root` have the same connections.
    """

    url: str | os.PathLike[str]
    storage_options: Mapping[str, Any] | None = field(repr=False)
    fencing: Fencing = "required"
    concurrency: int = 16
    timeout: float = 60.0
    _opened: dict[int, Space] = field(default_factory=dict, init=False, repr=False, compare=False)

    def open(self) -> Space:
        """The space of this process."""
        pid = os.getpid()
        if pid not in self._opened:
            store = open_store(
                self.url,
                self.storage_options,
                fencing=self.fencing,
                concurrency=self.concurrency,
                timeout=self.timeout,
            )
            self._opened[pid] = Space(store, SystemHost())
        return self._opened[pid]

    def __reduce__(self) -> tuple[Any, ...]:
        return Root, (self.url, self.storage_options, self.fencing, self.concurrency, self.timeout)


class Client(Generic[T]):
    """Pickles as its configuration only. In another process, a forked one too, it starts as if just made."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._open()

    def _make(self, space: Space) -> T:
        """What does the work, in this process."""
        raise NotImplementedError

    def _open(self) -> T:
        self._current = self._make(self._root.open())
        self._pid = os.getpid()
        return self._current

    @property
    def _core(self) -> T:
        return self._current if self._pid == os.getpid() else self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_current", "_pid")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()
