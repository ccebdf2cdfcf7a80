"""What Spark's checkpoint says of the batch that runs, asked from Spark itself: it has the newest in memory."""

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError

from pyspark_checkpointer.admin.streaming.file_source_log import digest, last_entries
from pyspark_checkpointer.admin.streaming.offset_log import BatchOffsets
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.manifest_json import LIST_ENTRY
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.spark.batch import find_query
from pyspark_checkpointer.storage.url import parse

logger = logging.getLogger("pyspark_checkpointer")

MAX_FILES = 100_000
"""Files of one batch whose names are looked at: some tenths of a second, where Spark took many to list them."""


class QueryProgress:
    """How far one run of a query is, batch by batch."""

    def __init__(self, session: Any, query_id: str) -> None:
        self._jvm = session._jvm
        self._query = find_query(session, query_id)

    def of(self, job: Job, last: Job | None) -> Job:
        """Return a batch with how far Spark is. `last` is the batch before it where that ran here.

        A Spark that does not tell is no reason to stop: what needs its progress asks for it then.
        """
        if self._query is None:
            return job
        try:
            offsets = self._offsets(job.batch_id)
            known = None if last is None or last.batch_id != job.batch_id - 1 else last.spark
            before = known.offsets if known else self._offsets(job.batch_id - 1) if job.batch_id > 0 else None
            if offsets is None or (before is None and job.batch_id > 0):
                return job
            ends, starts = BatchOffsets.parse(offsets).sources, BatchOffsets.parse(before).sources if before else ()
            lists = dict(self._digests(starts, known.lists if known else {}))
            lists |= self._digests(ends, lists)
            return replace(job, spark=SparkProgress(self._location, offsets, starts, lists))
        except (Py4JError, ValueError) as error:
            logger.warning("query %s: its offsets could not be read: %s", job.query_id, type(error).__name__)
            return job

    @functools.cached_property
    def _location(self) -> str:
        """As this library writes it; nothing where that might hold credentials."""
        try:
            return parse(str(self._query.resolvedCheckpointRoot())).url
        except IllegalArgumentError:
            return ""

    def _offsets(self, batch_id: int) -> str | None:
        """Return the text of `offsets/<batch_id>`."""
        log = self._query.offsetLog()
        found = log.get(batch_id)
        return None if found.isEmpty() else self._text(log, found.get())

    @functools.cached_property
    def _logs(self) -> list[tuple[str, Any]]:
        """For each line of offsets: the folder of its source, and the list of files; no list for another source."""
        found: list[tuple[str, Any]] = []
        try:
            sources = self._query.sources()
            for number in range(sources.size()):
                source, log = sources.apply(number), None
                if source.getClass().getSimpleName() == "FileStreamSource":
                    field = source.getClass().getDeclaredField("metadataLog")
                    field.setAccessible(True)
                    log = field.get(source)
                found.append((str(number) if log is None else str(log.metadataPath().getName()), log))
        except Py4JError as error:  # another Spark
            logger.debug("its lists of files could not be found: %s", type(error).__name__)
            return []
        return found

    def _digests(self, sources: tuple[str, ...], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Of the entries that these offsets end with."""
        logs = dict(self._logs)
        for source, entry in last_entries(sources, [folder for folder, _ in self._logs]).items():
            name = f"{source}/{entry}"
            seen = known.get(name) or self._digest(logs.get(source), entry)
            if seen is not None and LIST_ENTRY.fullmatch(name):  # no other could be read again
                yield name, seen

    def _digest(self, log: Any, entry: int) -> str | None:
        """None where it is not known: another Spark, or more files than one looks at."""
        if log is None:
            return None
        try:
            only = self._jvm.scala.jdk.javaapi.OptionConverters.toScala(self._jvm.java.util.OptionalLong.of(entry))
            files = log.get(only, only)[0]._2()
            return digest(self._text(log, files), entry) if len(files) <= MAX_FILES else None
        except (Py4JError, LookupError) as error:
            logger.debug("entry %d of a list of files could not be read: %s", entry, type(error).__name__)
            return None

    def _text(self, log: Any, entry: Any) -> str:
        """Return what Spark writes into a file of one of its logs."""
        buffer = self._jvm.java.io.ByteArrayOutputStream()
        log.serialize(entry, buffer)
        return str(buffer.toString("UTF-8"))
