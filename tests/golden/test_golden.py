"""A store that was written once and is never written again must be read for ever, and written the same way."""

import importlib.util
import json
import shutil
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CorruptionError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import sha256

HERE = Path(__file__).parent
V1 = HERE / "v1"
EXPECTED: dict[str, Any] = json.loads((V1 / "expected.json").read_text(encoding="utf-8"))

CONTENT = {name: value for name, value in EXPECTED.items() if name not in ("zstd", "pyarrow")}


def load_script() -> Any:
    loader = SourceFileLoader("make_golden", str(HERE.parents[1] / "scripts" / "make-golden"))
    spec = importlib.util.spec_from_loader("make_golden", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


script = load_script()


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy: a test that writes must not change the golden one."""
    return Path(shutil.copytree(V1 / "store", tmp_path / "store"))


def test_it_is_read_as_it_was_written(store: Path) -> None:
    before = files(store)
    assert json.loads(json.dumps(script.read(store))) == CONTENT
    assert files(store) == before


def test_it_has_what_the_format_has() -> None:
    paths = [*files(V1 / "store")]
    for part in (
        "_latest",
        "manifests/0",
        "segments/",
        "catalog/",
        "/packs/",
        ".snapshot.",
        ".delta.",
        ".raw",
        "+zstd",
        ".parquet",
    ):
        assert any(part in path for path in paths), part
    newest = EXPECTED["checkpoints"][EXPECTED["latest"]]
    assert newest["segments"]["wide"] == 2
    assert len(newest["operators"]["wide"]) > 512
    assert EXPECTED["savepoints"]
    assert EXPECTED["prepared"]
    assert sum(map(len, files(V1).values())) < 300_000


def test_every_name_holds_the_digest_of_its_content() -> None:
    for path, data in files(V1 / "store").items():
        if path != object_paths.LATEST:
            assert object_paths.owner(path) is not None, path
        if path.startswith((object_paths.SEGMENTS, object_paths.ARTIFACTS, object_paths.CATALOGS)):
            assert object_paths.digest_of(path) == sha256(data)


def test_the_writer_still_writes_it(tmp_path: Path) -> None:
    """The same bytes, where the libraries are the same; others may compress better, and then it reads the same."""
    script.make(tmp_path)
    libraries = {"zstd": list(zstandard.ZSTD_VERSION), "pyarrow": pa.__version__}
    if {name: EXPECTED[name] for name in libraries} == libraries:
        assert files(tmp_path) == files(V1)
    assert json.loads((tmp_path / "expected.json").read_text()) == EXPECTED | libraries


def test_a_new_writer_goes_on_from_it(store: Path) -> None:
    with Checkpointer(str(store)) as ck:
        restored = ck.restore()
        assert restored is not None
        with pytest.raises(InvalidStateError, match="prepared"):
            ck.begin()
        assert restored.prepared is not None
        restored.prepared.commit()
        restored = ck.restore()
        assert restored is not None
        state = restored.keyed("seen")
        state["after"] = "all"
        with ck.begin(epoch=5) as cp:
            cp.save("seen", state)
            cp.delta("wide", 1, b"more")
    with Checkpointer(str(store)) as ck:
        restored = ck.restore()
        assert restored is not None
        assert restored.keyed("seen")["after"] == "all"
        assert restored.operator("totals").partition(0) == [b"zero, prepared"]
        assert restored.operator("wide").partition(1) == [b"1", b"more"]
        assert restored.operator("wide").partition(77) == [b"77", b"77, changed"]
        assert [str(c) for c in ck.list_checkpoints()][:4] == [*EXPECTED["checkpoints"], EXPECTED["prepared"][0]]


@pytest.mark.parametrize(
    "path",
    sorted(path for path, data in files(V1 / "store").items() if data),
    ids=lambda path: path.replace(".", "-")[:60],
)
def test_a_damaged_object_is_never_read_as_something_else(store: Path, path: str) -> None:
    """One byte of one object changed: either the object is garbage, or reading everything fails in the tree."""
    target = store / path
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(bytes(data))
    if path.startswith("catalog/0000000003-"):  # replaced by another since
        assert script.read(store) == CONTENT
        return
    if EXPECTED["prepared"][0] in path and path.startswith("artifacts/"):
        return  # nothing of the prepared checkpoint is read before it is committed
    with pytest.raises(CorruptionError) as caught:
        script.read(store)
    assert path in str(caught.value)
