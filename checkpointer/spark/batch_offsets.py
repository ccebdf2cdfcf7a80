"""Ask Spark for the offsets of the running batch, and record them.

Spark has these offsets in memory.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError

from pyspark_checkpointer.admin.streaming.file_source_log import digest, last_entries
from pyspark_checkpointer.admin.streaming.offset_log import BatchOffsets
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.job_json import LIST_ENTRY
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.spark.batch import find_query
from pyspark_checkpointer.spark.versions import option_of_long, sources_of
from pyspark_checkpointer.storage.url import parse

logger = logging.getLogger("pyspark_checkpointer")

MAX_FILES = 100_000
"""The most files of one batch that are hashed.

That takes tenths of a second; Spark took longer to list them.
"""


class QueryOffsets:
    """The offsets of one run of a query, batch by batch."""

    def __init__(self, session: Any, query_id: str) -> None:
        self._session = session
        self._query = find_query(session, query_id)

    def add_to(self, job: Job, last: Job | None) -> Job:
        """Return the batch with its offsets.

        `last` is the batch before it, where this run committed that one.

        If Spark does not tell the offsets, the batch is returned without them. Operations that need them, such as a
        rewind, then raise an error.
        """
        try:
            offsets = self._offsets(job.batch_id)
            # Spark is asked for the batch before this one only if this run did not commit it: each question takes
            # several calls of the JVM.
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
        """Return the checkpointLocation as this library writes it.

        It is empty where it might hold credentials.
        """
        try:
            return parse(str(self._query.resolvedCheckpointRoot())).url
        except IllegalArgumentError:
            return ""

    # py4j asks the JVM for a class each time, so classes are looked up once, and by their whole names: for each part of
    # a name, the JVM would look in all jars.

    @functools.cached_property
    def _byte_stream(self) -> Any:
        return getattr(self._session._jvm, "java.io.ByteArrayOutputStream")

    @functools.cached_property
    def _option_of_long(self) -> Callable[[int], Any]:
        return option_of_long(self._session)

    def _offsets(self, batch_id: int) -> str | None:
        """Return the text of `offsets/<batch_id>`; None where Spark does not tell it."""
        if self._query is None:
            return None
        log = self._query.offsetLog()
        found = log.get(batch_id)
        return None if found.isEmpty() else self._text(log, found.get())

    @functools.cached_property
    def _logs(self) -> dict[str, tuple[str, Any]]:
        """Return the folder and the list of files of each file source.

        The key is the id of the source in the offset log.
        """
        found = {}
        try:
            for source_id, source in sources_of(self._query):
                if source.getClass().getSimpleName() == "FileStreamSource":
                    field = source.getClass().getDeclaredField("metadataLog")
                    field.setAccessible(True)
                    log = field.get(source)
                    # The folder may have another number than the id, for instance where one source stands twice in a
                    # query.
                    found[source_id] = str(log.metadataPath().getName()), log
        except Py4JError as error:  # These are internals of Spark: another version may have others.
            logger.debug("its lists of files could not be found: %s", type(error).__name__)
            return {}
        return found

    def _digests(self, sources: tuple[str, ...], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the name and digest of entries of lists of files.

        The entries are those that these offsets end with.
        """
        folders = {source_id: folder for source_id, (folder, _) in self._logs.items()}
        for source, entry in last_entries(sources, folders).items():
            name = f"{source}/{entry}"
            # An entry that the batch before ended with is the one that this batch begins with: it was hashed then.
            seen = known.get(name) or self._digest(source, entry)
            if seen is not None and LIST_ENTRY.fullmatch(name):  # The manifest could not be read with another name.
                yield name, seen

    def _digest(self, source: str, entry: int) -> str | None:
        """Return the digest of an entry of the list of files of a source, by its folder.

        Returns None where this version of Spark has other internals, or for more than `MAX_FILES` files.
        """
        log = dict(self._logs.values()).get(source)
        if log is None:
            return None
        try:
            only = self._option_of_long(entry)
            files = log.get(only, only)[0]._2()
            return digest(self._text(log, files), entry) if len(files) <= MAX_FILES else None
        except (Py4JError, LookupError) as error:
            logger.debug("entry %d of a list of files could not be read: %s", entry, type(error).__name__)
            return None

    def _text(self, log: Any, entry: Any) -> str:
        """Return the text that Spark writes into a file of one of its logs for this entry."""
        buffer = self._byte_stream()
        log.serialize(entry, buffer)
        return str(buffer.toString("UTF-8"))
