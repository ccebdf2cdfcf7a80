"""Restore: from the pointer down to the values."""

import pathlib
import re
import sys

from tests.judge.reader.checks import ID, Missing, about, sequence
from tests.judge.reader.manifest import read_manifest
from tests.judge.reader.maps import read_map
from tests.judge.reader.objects import compare, fetch, length
from tests.judge.reader.pointer import read_catalog, read_pointer
from tests.judge.reader.tables import read_table


def read_content(root, op, clock):
    objects = {}

    def load(row):
        """Codecs: size, digest. The whole object is read; its own digest is compared where it is the artifact's."""
        o = row["object"]
        if not row["length"]:
            data = b""  # Restore 5: needs no request
        else:
            if o["path"] not in objects:
                objects[o["path"]] = fetch(root, o["path"])
            data = objects[o["path"]]
        with about(o["path"]):
            if row["length"]:
                length(data, o["size"])
                data = data[row["offset"] : row["offset"] + row["length"]]
            compare(data, row["digest"])
            if o["tail"] and row["length"]:
                compare(objects[o["path"]][-o["tail"][0] :], o["tail"][1])
        return data

    if op["codec"] == "parquet":
        return read_table(root, op, load, clock)
    if op["codec"] == "raw":
        return {"kind": "raw", "content": {p: [load(r) for r in chain] for p, chain in op["chains"].items()}}
    return {"kind": "map", "content": read_map(op, load, clock)}


def read_once(root, data):
    with about("_latest"):
        pointer = read_pointer(data)
    ref, out = (
        pointer["committed"],
        {
            "id": None,
            "epoch": None,
            "created": None,
            "positions": {},
            "watermark": None,
            "properties": {},
            "clock": None,
            "operators": {},
            "prepared": pointer["prepared"],
            "savepoints": {},
        },
    )
    if ref:
        path = f"manifests/{ref['id']}.json"
        data = fetch(root, path)
        with about(path):
            manifest = read_manifest(root, data, ref)
        out |= manifest | {"id": ref["id"], "operators": {}}
        for op, o in manifest["operators"].items():
            with about(f"operator {op!r:.200}"):
                out["operators"][op] = read_content(root, o, manifest["clock"]) | {"partitions": o["partitions"]}
    if pointer["prepared"]:  # Restore 7: what is handed out is read
        path = f"manifests/{pointer['prepared']['id']}.json"
        data = fetch(root, path)
        with about(path):
            read_manifest(root, data, pointer["prepared"])
    if pointer["catalog"]:
        path = pointer["catalog"]["path"]
        data = fetch(root, path)
        with about(path):
            out["savepoints"] = read_catalog(data, pointer["catalog"])
    return out


DEPTH = 250_000  # Values: 33 extensions of 1,024 levels


def read(root):
    """All that the committed checkpoint of a store holds, its savepoints, and what is prepared."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEPTH)
    try:
        return read_again_and_again(pathlib.Path(root))
    finally:
        sys.setrecursionlimit(before)


def read_again_and_again(root):
    while True:
        try:
            data = fetch(root, "_latest")
        except Missing:
            found = [p.name for p in (root / "manifests").glob("*.json") if re.fullmatch(ID + r"\.json", p.name)]
            if any(sequence(n) > 1 for n in found):
                raise Missing("_latest: the store has lost its pointer") from None
            return {
                "id": None,
                "epoch": None,
                "created": None,
                "positions": {},
                "watermark": None,
                "properties": {},
                "clock": None,
                "operators": {},
                "prepared": None,
                "savepoints": {},
            }
        try:
            return read_once(root, data)
        except Missing:  # Restore 6
            if fetch(root, "_latest") == data:
                raise
