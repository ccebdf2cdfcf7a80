"""The registry of codecs says of each name what a manifest and a path mean by it, as the specification does."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.codecs import CODECS, PURE_CODECS
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import SNAPSHOT, CheckpointId
from pyspark_checkpointer.manifests.msgpack_values import pack
from tests.test_layers import FILES, ROOT, parse

OWNER = CheckpointId.parse("0000000007-0badcafe")


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_goes_by_its_name_and_ends_the_paths_of_its_objects(name: str) -> None:
    assert CODECS[name].name == name
    path = object_paths.artifact("op", 0, OWNER, SNAPSHOT, sha256(b""), name)
    assert path.endswith(f".{name}")
    assert object_paths.parse_artifact(path).codec == name


def test_the_specification_describes_every_codec_and_partitioner() -> None:
    spec = (ROOT / "manifests" / "SPEC.md").read_text("utf-8")

    def described(section: str) -> set[str]:
        text = re.split(r"^## ", spec.partition(f"\n## {section}\n")[2], flags=re.M)[0]
        return set(re.findall(r"^\*\*`([^`]+)`\*\*", text, re.M))

    assert described("Codecs") == {*CODECS}
    assert described("Partitioners") == {codec.partitioner for codec in CODECS.values()}


def test_what_a_pure_codec_encodes_it_decodes() -> None:
    content = {codecs.MSGPACK.name: {"k": pack(1), 2: None}}
    assert PURE_CODECS.keys() == content.keys()
    for name, codec in PURE_CODECS.items():
        stored, raw_size = codec.encode(content[name])
        assert codec.decode("object", memoryview(stored), raw_size, len(content[name])) == content[name]


SECOND_CODEC = """
from pyspark_checkpointer.manifests import keyed_records

def encode(records):
    stored, raw_size = keyed_records.encode(records)
    return b"2" + stored, raw_size

def decode(name, stored, raw_size, records):
    assert bytes(stored[:1]) == b"2", name
    return keyed_records.decode(name, stored[1:], raw_size, records)
"""
"""Step 1 of the how-to: a module with the functions of a codec."""

ENTRY = """from pyspark_checkpointer.manifests import second

SECOND = PureCodec("second", "map", MAP_PARTITIONER, 1, 8, second.encode, second.decode)

"""

USE_OF_MAPS = """
import sys
from pyspark_checkpointer import Checkpointer, KeyedState

with Checkpointer(sys.argv[1]) as client:
    restored = client.restore()
    states = {name: restored.keyed(name) if restored else KeyedState(partitions=2) for name in ("deltas", "kept")}
    states["new"] = KeyedState(partitions=2)
    for batch in range(8):
        for name, state in states.items():
            if name != "kept":
                state.update({key: batch for key in range(9 * batch, 100)})
        with client.begin() as checkpoint:
            if restored:
                checkpoint.drop("new")
            for name, state in states.items():
                checkpoint.save(name, state)
        restored = None
    again = client.restore()
    assert all(dict(again.keyed(name)) == dict(states[name]) for name in states)
    assert client.verify()
    print(*(again.manifest.operators[name].codec for name in sorted(states)))
"""


def test_the_first_three_steps_of_the_how_to_add_a_codec_of_maps(tmp_path: Path) -> None:
    """Maps that there are keep the codec that they began with."""

    def run(library: Path) -> list[str]:
        command = [sys.executable, "-c", USE_OF_MAPS, str(tmp_path / "root")]
        environment = os.environ | {"PYTHONPATH": str(library)}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.split()

    first = codecs.MSGPACK.name
    assert run(ROOT / "src") == [first, first, first]
    other = shutil.copytree(ROOT / "src", tmp_path / "library")  # with what its links name
    package = other / "pyspark_checkpointer" / "manifests"
    (package / "second.py").write_text(SECOND_CODEC, "utf-8")
    text = (package / "codecs.py").read_text("utf-8")
    for old, new in (
        ("MAP_CODEC = MSGPACK\n", f"{ENTRY}MAP_CODEC = SECOND\n"),
        ("(RAW, MSGPACK, PARQUET)", "(RAW, MSGPACK, SECOND, PARQUET)"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (package / "codecs.py").write_text(text, "utf-8")
    assert run(other) == [first, first, "second"]


def test_all_codecs_of_maps_have_the_partitioner_of_maps() -> None:
    assert {codec.partitioner for codec in CODECS.values() if codec.holds == "map"} == {codecs.MAP_PARTITIONER}


def _names_in(module: str) -> set[str]:
    names = {*CODECS, *(codec.partitioner for codec in CODECS.values())} - {"raw", "parquet"}  # common words
    nodes = ast.walk(parse(module))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)} & names


def test_no_other_module_spells_the_name_of_a_codec_or_partitioner() -> None:
    found = {module: _names_in(module) for module in FILES}
    assert {module for module, names in found.items() if names} == {"pyspark_checkpointer.manifests.codecs"}, found
