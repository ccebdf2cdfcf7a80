"""Two segments that name one object say the same of it, or both readers refuse the store."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pyspark_checkpointer.manifests.digest import sha256
from tests.judge import readings, stores
from tests.judge.hostile.frames import unzstd


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("said", "accepted"),
    [([0], True), ([1], False), ([-1], False), ([0, 1, "ab" * 32], False)],
    ids=["the same", "a byte more", "a byte less", "a tail"],
)
def test_a_segment_that_repeats_what_is_below(tmp_path: Path, said: list[Any], accepted: bool) -> None:
    """The newest segment has one more patch: the chain of a partition, as the oldest segment has it."""
    root = stores.make("segments", tmp_path / "store")
    latest = json.loads((root / "_latest").read_bytes())
    path = root / f"manifests/{latest['committed']['id']}.json"
    manifest = json.loads(path.read_bytes())
    rows = manifest["operators"]["many"]["segments"]
    oldest, newest = (json.loads(unzstd((root / row[0]).read_bytes())) for row in (rows[0], rows[-1]))
    partition = next(number for number in oldest["patches"] if number not in newest["patches"])
    (_, (chain,)) = oldest["patches"][partition]
    name, size = oldest["objects"][chain[0]][:2]
    newest["objects"].append([name, size + said[0], *said[1:]])
    newest["patches"][partition] = [0, [[len(newest["objects"]) - 1, *chain[1:]]]]
    raw = dump(newest)
    data = zstandard.compress(raw)
    rows[-1] = [re.sub("[0-9a-f]{64}", sha256(data), rows[-1][0]), len(data), len(raw), len(newest["patches"])]
    (root / rows[-1][0]).write_bytes(data)
    path.write_bytes(dump(manifest))
    latest["committed"]["digest"] = sha256(path.read_bytes())
    latest.pop("digest")
    body = dump(latest)[:-1]
    (root / "_latest").write_bytes(body + b',"digest":"' + sha256(body).encode() + b'"}')
    judged, read = readings.judged(root), readings.library(root)
    assert (judged is not None, read is not None) == (accepted, accepted)
    assert judged == read
