"""What the tests of the journal share: a file on some store, opened by the implementation under test."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from pyspark_checkpointer.consumers.journal import Journal
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store

IMPLEMENTATIONS = [Journal]
NEVER = 3600.0
AT = datetime(2026, 3, 1, 12, 30, 15, 250000, tzinfo=UTC)
LATER = AT + timedelta(seconds=1)


@dataclass(frozen=True)
class Place:
    """A file that is not there yet, in a folder that is not there yet, on some store."""

    url: str
    storage_options: dict[str, Any] | None = field(default=None, repr=False)
    implementation: Any = Journal
    name: str = "journal.yml"

    @property
    def folder(self) -> str:
        return f"{self.url}/logs"

    @property
    def file(self) -> str:
        return f"{self.folder}/{self.name}"

    def open(self, max_updates: int = 1000, interval: float = NEVER) -> Any:
        return self.implementation(self.file, max_updates, interval, self.storage_options)

    def store(self) -> Store:
        return open_store(self.folder, self.storage_options)

    def read(self, name: str | None = None) -> bytes:
        return run_sync(self.store().get(name or self.name)).data

    def write(self, data: bytes, name: str | None = None) -> None:
        """Put a file there, in place of what there is."""
        store = self.store()
        run_sync(store.delete([name or self.name]))
        run_sync(store.put(name or self.name, data))

    def everything(self) -> dict[str, bytes]:
        return {entry.path: self.read(entry.path) for entry in run_sync(self.store().list(""))}

    def document(self) -> Any:
        return yaml.safe_load(self.read())

    def numbers(self) -> dict[str, int]:
        return {log["name"]: log["record_number"] for log in self.document()["event_logs"]}
