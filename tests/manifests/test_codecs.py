"""The registry of codecs says of each name what a manifest and a path mean by it, as the specification does."""

import ast
import re

import pytest

from pyspark_checkpointer.manifests import codecs, keyed_records, object_paths
from pyspark_checkpointer.manifests.codecs import CODECS, PureCodec
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
    content = {codecs.RAW.name: b"\0own", codecs.MSGPACK.name: {"k": pack(1), 2: None}}
    pure = {codec.name: codec for codec in CODECS.values() if isinstance(codec, PureCodec)}
    assert pure.keys() == content.keys()
    for name, codec in pure.items():
        stored, raw_size = codec.encode(content[name])
        assert codec.decode("object", memoryview(stored), raw_size, len(content[name])) == content[name]


def test_only_the_entries_of_a_map_find_their_partition_here() -> None:
    assert codecs.MSGPACK.partition_of is keyed_records.partition_of
    assert codecs.RAW.partition_of is None


def _names_in(module: str) -> set[str]:
    names = {*CODECS, *(codec.partitioner for codec in CODECS.values())} - {"raw", "parquet"}  # common words
    nodes = ast.walk(parse(module))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)} & names


def test_no_other_module_spells_the_name_of_a_codec_or_partitioner() -> None:
    found = {module: _names_in(module) for module in FILES}
    assert {module for module, names in found.items() if names} == {"pyspark_checkpointer.manifests.codecs"}, found
