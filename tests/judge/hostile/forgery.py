"""Take a store apart, change one thing, and put it together again with new digests."""

import copy
import io
import json
import re
from random import Random
from typing import Any

import pyarrow.parquet as pq
import zstandard

from tests.judge.hostile.frames import changed_frames, pointer_ends, sha256, unzstd
from tests.judge.hostile.json_changes import DIGEST, Text, change_json, way_of
from tests.judge.hostile.parquet_files import ChangedTable
from tests.judge.hostile.records import change_records, taken_apart

Rows = list[list[Any]]


class Forgery:
    """A store that is taken apart, changed, and put together again."""

    def __init__(self, files: dict[str, bytes], random: Random) -> None:
        self.files, self.random = dict(files), random
        self.text = Text()
        self.latest: Any = json.loads(files["_latest"])
        self.latest.pop("digest")
        self._pointer_bytes: bytes | None = None
        ref = self.latest["committed"]
        self.manifest: Any = json.loads(files[f"manifests/{ref['id']}.json"]) if ref else None
        self.catalog: Any = json.loads(files[self.latest["catalog"]["path"]]) if self.latest["catalog"] else None
        self.segments: dict[str, list[Any]] = {
            name: [json.loads(unzstd(files[row[0]])) for row in operator["segments"]]
            for name, operator in (self.manifest or {"operators": {}})["operators"].items()
            if "segments" in operator
        }
        self._changed: set[str] = set()
        self._spread = ""

    def change(self) -> str:
        makers = [self._pointer]
        if self.catalog:
            makers += [self._catalog]
        if self.manifest:
            makers += [self._manifest] * 4 + [self._rows] * 2
            found = self.operators()
            makers += [self._segment] * 2 + [self._frame_of_segment] if self.segments else []
            makers += [self._exchanged] if len(found) > 1 else []
            makers += [self._records] * 5 + [self._frame] if any(o["codec"] == "msgpack+zstd" for _, o in found) else []
            makers += [self._parquet] * 6 if any(o["codec"] == "parquet" for _, o in found) else []
            makers += [self._schema] * 2 if any(o["codec"] != "raw" and o["schema"] for _, o in found) else []
        return self.random.choice(makers)()

    def operators(self) -> list[tuple[str, Any]]:
        return list(self.manifest["operators"].items())

    def seal(self) -> None:
        """Digest everything again, from what was changed up to the pointer."""
        dump = self.text.dump
        for name in self._changed & self.segments.keys():
            rows = self.manifest["operators"][name]["segments"]
            for row, doc in zip(rows, self.segments[name], strict=True):
                raw = dump(doc)
                if raw == unzstd(self.files[row[0]]):
                    continue
                data = zstandard.compress(raw)
                path = re.sub("[0-9a-f]{64}", sha256(data), row[0])
                patches = doc.get("patches") if isinstance(doc, dict) else None
                row[:] = [path, len(data), len(raw), len(patches) if isinstance(patches, dict) and patches else row[3]]
                self.files[path] = data
        if "manifest" in self._changed or self._changed & self.segments.keys():
            data = dump(self.manifest)
            self.files[f"manifests/{self.latest['committed']['id']}.json"] = data
            self.latest["committed"]["digest"] = sha256(data)
        if "catalog" in self._changed:
            data = dump(self.catalog)
            path = re.sub("[0-9a-f]{64}", sha256(data), self.latest["catalog"]["path"])
            self.latest["catalog"] = {"path": path, "digest": sha256(data)}
            self.files[path] = data
        body = dump(self.latest)[:-1]
        self.files["_latest"] = self._pointer_bytes or body + b',"digest":"' + sha256(body).encode() + b'"}'

    def _put(self, old: Any, new: Any) -> None:
        """What had the name `old` has the name `new` too, so that the name alone may be wrong."""
        safe = (
            isinstance(new, str) and re.fullmatch(r"[^/\0]{1,200}(/[^/\0]{1,200})*", new) and ".." not in new.split("/")
        )
        if safe and isinstance(old, str) and old in self.files and new != "_latest":
            try:
                new.encode()
            except UnicodeEncodeError:
                return
            if not any(new.startswith(f"{path}/") or path.startswith(f"{new}/") for path in self.files):
                self.files.setdefault(new, self.files[old])

    # ---- JSON --------------------------------------------------------------------------------------------------------

    def _pointer(self) -> str:
        if self.random.random() < 0.2:
            return self._end_of_pointer()
        old = copy.deepcopy(self.latest)
        how, way = change_json(self.latest, self.text, self.random)
        for name in ("committed", "prepared"):
            before, after = old[name], self.latest.get(name)
            if isinstance(before, dict) and isinstance(after, dict):
                self._put(f"manifests/{before['id']}.json", f"manifests/{after.get('id')}.json")
        before, after = old["catalog"], self.latest.get("catalog")
        if isinstance(before, dict) and isinstance(after, dict):
            self._put(before["path"], after.get("path"))
        return f"pointer {way_of(way)}: {how}"

    def _end_of_pointer(self) -> str:
        ends = pointer_ends(self.text.dump(self.latest)[:-1])
        how = self.random.choice(sorted(ends))
        self._pointer_bytes = ends[how]
        if how == "empty":
            self._pointer_bytes = b" "
        return f"pointer digest: {how}"

    def _catalog(self) -> str:
        self._changed.add("catalog")
        how, way = change_json(self.catalog, self.text, self.random)
        return f"catalog {way_of(way)}: {how}"

    def _manifest(self) -> str:
        self._changed.add("manifest")
        old = copy.deepcopy(self.manifest)
        if self.random.random() < 0.6 and self.manifest["operators"]:  # or the fields besides would be seen most
            name, operator = self.random.choice(self.operators())
            how, way = change_json(operator, self.text, self.random)
            self._follow(old["operators"][name], operator, way)
            return f"manifest operators.?.{way_of(way)}: {how}"
        how, way = change_json(self.manifest, self.text, self.random)
        if len(way) > 2 and way[0] == "operators":
            self._follow(old["operators"].get(way[1], {}), self.manifest["operators"].get(way[1], {}), way[2:])
            way = ("operators", "?", *way[2:])
        return f"manifest {way_of(way)}: {how}"

    def _segment(self) -> str:
        name = self.random.choice(sorted(self.segments))
        self._changed |= {name, "manifest"}
        doc = self.random.choice(self.segments[name])
        old = copy.deepcopy(doc)
        how, way = change_json(doc, self.text, self.random)
        self._follow(old, doc, way)
        return f"segment {way_of(way)}: {how}"

    def _follow(self, old: Any, new: Any, way: tuple[Any, ...]) -> None:
        """Where a row names another object, see to it that there is one."""
        if len(way) == 3 and way[0] in ("objects", "segments") and way[2] == 0:
            try:
                self._put(old[way[0]][way[1]][0], new[way[0]][way[1]][0])
            except (LookupError, TypeError):
                return

    def _frame_of_segment(self) -> str:
        """Another frame around a segment, which is sealed here: `seal` would compress it anew."""
        name = self.random.choice(sorted(self.segments))
        row = self.random.choice(self.manifest["operators"][name]["segments"])
        raw = unzstd(self.files[row[0]])
        frames = changed_frames(raw, self.random)
        how = self.random.choice(sorted(frames))
        path = re.sub("[0-9a-f]{64}", sha256(frames[how]), row[0])
        self.files[path] = frames[how]
        row[:3] = [path, len(frames[how]), len(raw) + self.random.choice([0, 0, 0, 0, 1, -1])]
        self._changed.add("manifest")
        return f"frame of a segment: {how}"

    def _exchanged(self) -> str:
        """Give an operator what is another one's: all of it, or one field."""
        (one, first), (other, second) = self.random.sample(self.operators(), 2)
        operators = self.manifest["operators"]
        fields = [name for name in first if name in second]
        what = self.random.choice(["all", "all", "copy", *fields])
        if what == "all":
            operators[one], operators[other] = second, first
        elif what == "copy":
            operators[one] = copy.deepcopy(second)
        else:
            first[what], second[what] = second[what], first[what]
        self._changed.add("manifest")
        return f"exchanged between operators: {what}"

    def _schema(self) -> str:
        operator = self.random.choice([o for _, o in self.operators() if o["codec"] != "raw" and o["schema"]])
        self._changed.add("manifest")
        how, way = change_json(operator["schema"], self.text, self.random)
        return f"manifest operators.?.schema.{way_of(way)}: {how}"

    # ---- artifacts ---------------------------------------------------------------------------------------------------

    def _documents(self, *codecs: str) -> list[tuple[str, Any, list[tuple[str, Rows]]]]:
        """The operator, what has its `objects`, and each chain or patch there with its partition."""
        found = []
        for name, operator in self.operators():
            if codecs and operator["codec"] not in codecs:
                continue
            if "chains" in operator:
                found.append((name, operator, list(operator["chains"].items())))
            else:
                for doc in self.segments[name]:
                    found.append((name, doc, [(p, rows) for p, (_, rows) in doc["patches"].items()]))
        return [(name, doc, chains) for name, doc, chains in found if any(rows for _, rows in chains)]

    def _chosen(self, *codecs: str) -> tuple[Any, str, Rows, int] | None:
        """A row of an artifact: what has its objects, its partition, its chain, and its index there."""
        documents = self._documents(*codecs)
        if not documents:
            return None
        name, doc, chains = self.random.choice(documents)
        self._changed |= {name, "manifest"}
        self._spread = (
            "of one partition" if self.manifest["operators"][name]["partitions"] == 1 else "of many partitions"
        )
        partition, rows = self.random.choice([(p, rows) for p, rows in chains if rows])
        return doc, partition, rows, self.random.randrange(len(rows))

    def _rows(self) -> str:
        """Change a row as a whole, its digest too."""
        chosen = self._chosen()
        if chosen is None:
            return self._manifest()
        doc, partition, rows, at = chosen
        row = rows[at]
        path, size = doc["objects"][row[0]][:2]
        data = self.files[path]
        how = self.random.choice(
            ["other form", "slice", "twice", "null digest", "whole digest", "digest", "kind", "moved"]
        )
        if how == "other form":
            kind = "delta" if at else "snapshot"
            rows[at] = row[:3] if len(row) == 7 else [*row[:3], kind, 0, size, self.random.choice([None, sha256(data)])]
        elif how == "slice" and len(row) == 7:
            start = self.random.randrange(size + 1)
            end = self.random.randrange(start, size + 1)
            raw = end - start if row[1] == row[5] else row[1]
            rows[at] = [row[0], raw, row[2], row[3], start, end - start, sha256(data[start:end])]
        elif how == "twice":
            rows.insert(at, copy.deepcopy(row))
        elif how in ("null digest", "whole digest") and len(row) == 7:
            row[6] = None if how == "null digest" else sha256(data)
        elif how == "digest" and len(row) == 7:
            row[6] = DIGEST
        elif how == "kind" and len(row) == 7:
            row[3] = "delta" if row[3] == "snapshot" else "snapshot"
        else:
            chains = chains_of(doc)
            other = self.random.choice(sorted(chains))
            chains[other].append(copy.deepcopy(row))
            how = "moved" if other != partition else "again"
        return f"row: {how}"

    def _exchange(self, doc: Any, row: list[Any], new: bytes, raw: int, records: int) -> None:
        """Other bytes for an artifact."""
        entry = doc["objects"][row[0]]
        data = self.files[entry[0]]
        offset, length = (0, entry[1]) if len(row) == 3 else (row[4], row[5])
        whole = data[:offset] + new + data[offset + length :]
        for other in [other for rows in chains_of(doc).values() for other in rows if other[0] == row[0]]:
            if len(other) == 3 or (other[4], other[5]) == (offset, length):
                other[1:3] = [raw, records]
            if len(other) == 7:
                if (other[4], other[5]) == (offset, length):
                    other[5] = len(new)
                    other[6] = None if other[6] is None or new == whole else sha256(new)
                elif other[4] >= offset + length:
                    other[4] += len(new) - length
        self._store(entry, whole)

    def _store(self, entry: list[Any], data: bytes, tail: int | None = None) -> None:
        path = re.sub("[0-9a-f]{64}", sha256(data), entry[0])
        self.files[path] = data
        entry[:2] = [path, len(data)]
        if len(entry) == 4:
            length = entry[2] if tail is None else tail
            entry[2:] = [length, sha256(data[len(data) - length :])]

    def _artifact(self, *codecs: str) -> tuple[Any, list[Any], bytes]:
        chosen = self._chosen(*codecs)
        assert chosen is not None
        doc, _, rows, at = chosen
        row = rows[at]
        data = self.files[doc["objects"][row[0]][0]]
        return doc, row, data if len(row) == 3 else data[row[4] : row[4] + row[5]]

    # ---- maps --------------------------------------------------------------------------------------------------------

    def _records(self) -> str:
        doc, row, data = self._artifact("msgpack+zstd")
        pairs = taken_apart(unzstd(data, row[1]))
        how, raw = change_records(pairs, self.random)
        try:
            count = sum(len(keys) for keys, _ in taken_apart(raw))
        except Exception:  # whatever is wrong there
            count = row[2]
        self._exchange(doc, row, zstandard.compress(raw), len(raw), count)
        return f"records {self._spread}: {how}"

    def _frame(self) -> str:
        doc, row, data = self._artifact("msgpack+zstd")
        raw = unzstd(data, row[1])
        frames = changed_frames(raw, self.random)
        how = self.random.choice(sorted(frames))
        more = self.random.choice([0, 0, 0, 0, 0, 0, 1, -1])
        self._exchange(doc, row, frames[how], len(raw) + more, row[2])
        return f"frame {self._spread}: {how}{f', raw size {more:+}' if more else ''}"

    # ---- tables ------------------------------------------------------------------------------------------------------

    def _parquet(self) -> str:
        documents = [
            (name, doc, chains) for name, doc, chains in self._documents("parquet") if any(e[1] for e in doc["objects"])
        ]
        name, doc, chains = self.random.choice(documents)
        self._changed |= {name, "manifest"}
        entry = self.random.choice(doc["objects"])
        index = doc["objects"].index(entry)
        data = self.files[entry[0]]
        table = pq.ParquetFile(io.BytesIO(data)).read()
        delta = "/packs/" in entry[0]
        changed = ChangedTable(table, delta, self.manifest["operators"][name]["schema"], self.random)
        new, tail = changed.data()
        self._store(entry, new, tail)
        for partition, rows in chains:
            for row in rows:
                if row[0] == index and not (len(row) == 7 and row[5] == 0):
                    row[2] = changed.records(int(partition))
                    if len(row) == 7:
                        row[5] = len(new)
                elif row[0] == index and row[6] == sha256(b""):
                    row[4] = 0
        return f"parquet {'delta' if delta else 'snapshot'}: {changed.how}"


def chains_of(doc: Any) -> dict[str, Rows]:
    """The rows of each partition that a manifest's operator, or a segment, has."""
    return doc["chains"] if "chains" in doc else {p: patch[1] for p, patch in doc["patches"].items()}
