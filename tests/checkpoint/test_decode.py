"""Records of a chain become one map, or an error that names the object."""

import pytest

from pyspark_checkpointer.checkpoint.decode import merge
from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.manifests.codecs import MSGPACK
from tests.manifests.samples import alone


def test_a_snapshot_with_a_deletion_is_malformed() -> None:
    snapshot = alone(0, codec=MSGPACK.name)
    with pytest.raises(MalformedError, match="a snapshot holds a deletion"):
        merge((snapshot,), {snapshot: {"a": None}})
