"""Nothing leads out of a root: no name, no record however well it is sealed, no link."""

import itertools
import json
import os
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer import Checkpointer, storage
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import dump_sealed
from pyspark_checkpointer.manifests.model import CheckpointId, Json
from pyspark_checkpointer.storage import Store
from pyspark_checkpointer.storage.base import Blob, check_path
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.storage.url import Location
from tests.admin.streaming.spark_model import LAST, Query, history
from tests.key_files import make_key
from tests.proof.forgery import Key, Way, copy, forge, putting, read, snapshot, texts, untouched
from tests.proof.verbs import (
    COMMITTED,
    CONSUMERS,
    READING,
    READING_DAMAGED,
    REWINDING,
    WRITING,
    command,
    do_all,
    do_everything,
    every_command,
)

ID = CheckpointId(1, "0c5442af")
D = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# ---- names -----------------------------------------------------------------------------------------------------------

_ODD = [
    ".",
    "..",
    "/",
    "\\",
    "\0",
    "%2e%2e",
    "%2F",
    "%",
    "~",
    "CON",
    "nul.json",
    "packs",
    "store",
    "ownership",
    ":",
    " ",
]
_ODD += ["e\u0301", "\u00e9", "\u202e", "\u212a", "k", "K", "\n", "\x1b[2J", "x" * 300, "~" + D, ".json", "\ud800"]
odd_names = st.lists(st.sampled_from(_ODD) | st.text(max_size=3), max_size=4).map("".join)

MAKERS: dict[str, Callable[[str], str]] = {
    "operator": lambda name: object_paths.pack(name, ID, D, "raw"),
    "operator's partition": lambda name: object_paths.artifact(name, 7, ID, "delta", D, "raw"),
    "namespace": lambda name: object_paths.ownership(object_paths.group_folder("eventhub", name, "hub", "group")),
    "event hub": lambda name: object_paths.ownership(object_paths.group_folder("eventhub", "namespace", name, "group")),
    "group": lambda name: object_paths.store(object_paths.group_folder("eventprocessorhost", "hub", name)),
    "application": lambda name: object_paths.ownership(object_paths.group_folder("kinesis", name)),
    "partition": lambda name: object_paths.position(object_paths.group_folder("kinesis", "app"), name),
}


def path_of(what: str, name: str) -> str | None:
    try:
        return MAKERS[what](name)
    except IllegalArgumentError:
        return None


@pytest.mark.parametrize("what", MAKERS)
@settings(max_examples=40)
@given(one=odd_names, other=odd_names)
def test_what_is_accepted_stays_in_its_place_and_has_it_alone(what: str, one: str, other: str) -> None:
    path, plain = path_of(what, one), path_of(what, "plain")
    assert plain is not None
    if path is None:
        return
    assert check_path(path) == os.path.normpath(path) == path
    assert path.isascii()
    assert path.isprintable()
    assert path.count("/") == plain.count("/")
    assert [a for a, b in zip(path.split("/"), plain.split("/"), strict=True) if "plain" not in b and a != b] == []
    assert max(map(len, path.split("/"))) <= 255
    assert object_paths.owner(path) is not None or object_paths.parse_position_path(path) is not None
    forms = {other, one.lower(), one.upper(), *(unicodedata.normalize(form, one) for form in ("NFC", "NFD", "NFKC"))}
    assert [form for form in forms if (path == path_of(what, form)) != (one == form)] == []


# ---- forged records --------------------------------------------------------------------------------------------------


def lies(outside: Path) -> list[str]:
    """What a forger would have a path or a name be; all but the last two are of the form that a path has."""
    name = f"{ID}.snapshot.{D}.raw"
    return [
        f"artifacts/link/packs/{ID}.{D}.raw",
        f"catalog/../../outside/{ID}.{D}.json",
        f"manifests/segments/../../../outside/{ID}.{D}.json.zst",
        f"artifacts/../../outside/0/{name}",
        f"artifacts/link/0/{name}",
        f"artifacts/%2E%2E/0/{name}",
        str(outside / "secret"),
        "../outside/secret",
    ]


def kind_of(at: Way) -> Way:
    """Places that are read by the same code: in any item of a list, or of what is kept by a name or a number."""
    named = {0} | {number + 1 for number, part in enumerate(at) if part in ("operators", "chains", "patches")}
    return tuple(0 if number in named or isinstance(part, int) else part for number, part in enumerate(at))


def places(record: str) -> list[Way]:
    """One place of each kind with a text in it."""
    found = {(kind_of(at), type(at[-1])): at for at in texts(read(record))}
    return list(found.values())


RECORDS = ("pointer", "manifest", "segment", "catalog")


def how_many(record: str, at: Way) -> int:
    """How many lies to tell in the short run: one where something becomes part of a path, more where one stands."""
    if at[-2:-1] == ("operators",):
        return 1
    value: Json = read(record)
    for part in at[:-1] if isinstance(at[-1], Key) else at:
        value = value[part]
    return 4 if "/" in str(value) and not isinstance(at[-1], Key) else at[-1] in ("operator", "codec", "id")


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("record", RECORDS)
def test_a_forged_record_can_at_worst_raise(
    record: str, tmp_path: Path, effort: Callable[..., int], figures: Counter[str]
) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(copy(tmp_path / "outside"), outside / "0")
    (outside / "secret").write_text("secret")
    number = itertools.count()
    for at in places(record):
        for lie in lies(outside)[: effort(how_many(record, at), 8)]:
            root = copy(tmp_path / f"root{next(number)}")
            (root / "artifacts" / "link").symlink_to(outside)
            forge(root, record, putting(at, lie))
            with untouched(outside):
                raised = [*do_everything(root, root.with_name(f"{root.name}-aside"))]
            figures["forged records"] += 1
            figures["errors of the tree"] += len(raised)


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("record", ["ownership.json", "positions/0.json"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_forged_owner_or_position_can_at_worst_raise(
    consumer: str, record: str, tmp_path: Path, effort: Callable[..., int], figures: Counter[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = copy(tmp_path / "root")
    reads, writes = CONSUMERS[consumer]
    writes(str(root))
    (file,) = root.glob(f"progress/{consumer}/**/{record}")
    honest = json.loads(file.read_bytes())
    for at in texts(honest):
        for lie in ("../outside/secret", str(outside / "secret"), "..")[: effort(1, 3)]:
            forged = deepcopy(honest)
            putting(at, lie)(forged)
            forged.pop("digest", None)
            file.write_bytes(dump_sealed(forged))
            with untouched(outside):
                for use in (reads, writes):
                    with suppress(CheckpointError):
                        use(str(root))
                assert "unexpected" not in command("consumers", root).err
            figures["forged records"] += 1


def make_query(folder: Path) -> tuple[Path, dict[str, Json]]:
    """A query that has stopped with Spark ahead, and its last batch as recorded."""
    root = folder / "root"
    history(str(root))
    query = Query(str(root))
    for batch in (LAST, LAST + 1):
        query.write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        query.begin()
    seen: list[dict[str, Json]] = []

    def stop(manifest: dict[str, Json]) -> None:
        manifest["job"].pop("driver")
        manifest["job"]["spark"]["gone"] = {"name": "1"}
        seen.append(manifest["job"])

    forge(root, "manifest", stop)
    return root, seen[0]


@pytest.mark.usefixtures("careless")
def test_a_forged_batch_can_at_worst_raise(tmp_path: Path, effort: Callable[..., int], figures: Counter[str]) -> None:
    outside = Path(shutil.copytree(copy(tmp_path / "golden"), tmp_path / "outside"))
    (outside / "secret").write_text("secret")
    whole, job = make_query(tmp_path / "whole")
    assert [*do_all(whole, tmp_path / "aside", REWINDING.values())] == []
    number = itertools.count()
    # The place of Spark's files is trusted within the root's own kind (SECURITY.md).
    for at in (at for at in texts(job) if at != ("spark", "location")):
        for lie in lies(outside)[: effort(2, 8)]:
            home = Path(shutil.copytree(whole.parent, tmp_path / f"query{next(number)}"))
            forge(home / "root", "manifest", putting(("job", "spark", "location"), str(home / "root-spark")))
            forge(home / "root", "manifest", putting(("job", *at), lie))
            with untouched(outside):
                raised = [*do_all(home / "root", home / "aside", REWINDING.values())]
            figures["forged records"] += 1
            figures["errors of the tree"] += len(raised)


ELSEWHERE = (
    "memory://elsewhere",
    "abfss://c@localhost/x",
    "s3://elsewhere/x",
    "sftp://elsewhere/x",
    "http://elsewhere/x",
)


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_forged_place_of_sparks_files_is_never_asked(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = make_query(tmp_path)
    forge(root, "manifest", lambda value: value["job"]["spark"].update(location=place))
    opened: list[str] = []
    open_root = storage.open_root

    def spy(location: Location, *args: Any) -> Store:
        opened.append(location.url)
        return open_root(location, *args)

    monkeypatch.setattr(storage, "open_root", spy)
    raised = [*do_all(root, tmp_path / "aside", REWINDING.values())]
    said = [
        command("rewind", root, "latest", "--dry-run"),
        command("rewind", root, "latest", "--yes", "--stopped"),
        command("rewind", root, "--undo", "--yes", "--stopped"),
        command("fork", root, "latest", tmp_path / "copy", tmp_path / "copy-spark"),
    ]
    assert [url for url in opened if not url.startswith(str(tmp_path))] == []
    assert ["--spark-checkpoint" in text for text in (*map(str, raised), *(one.err for one in said))] == [True] * 8


# ---- links -----------------------------------------------------------------------------------------------------------

LINKED = ("_latest", ".lock", "journal.yml", "artifacts", "artifacts/table/packs", "manifests")
LINKED += ("catalog", f"manifests/{COMMITTED}.json", "progress/eventhub/namespace")


@pytest.mark.usefixtures("careless")
def test_a_link_leads_to_nothing_outside(tmp_path: Path, effort: Callable[..., bool], figures: Counter[str]) -> None:
    whole = copy(tmp_path / "whole")
    with Checkpointer(whole) as ck:
        WRITING["record"](ck, tmp_path)
        WRITING["journal"](ck, tmp_path)
    below = sorted(path.relative_to(whole).as_posix() for path in whole.rglob("*"))
    assert set(LINKED) <= set(below)
    for number, name in enumerate(below if effort(False, True) else LINKED):
        root = Path(shutil.copytree(whole, tmp_path / f"root{number}"))
        outside = tmp_path / f"outside{number}"
        outside.mkdir()
        (root / name).symlink_to(shutil.move(root / name, outside / "it"))
        with untouched(outside):
            raised = [*do_everything(root, tmp_path / f"aside{number}")]
        assert raised, name
        figures["links planted"] += 1


@pytest.mark.parametrize("name", ["../outside/secret", "/etc/passwd", "artifacts/../../outside/secret", "_latest", ""])
def test_an_artifact_is_not_any_file(tmp_path: Path, name: str) -> None:
    with Checkpointer(copy(tmp_path / "root")) as ck, pytest.raises(CheckpointError):
        ck.load_artifact(name)


@pytest.mark.usefixtures("careless")
def test_reading_writes_nothing(tmp_path: Path) -> None:
    root = copy(tmp_path / "root")
    before = snapshot(root)
    for number, (name, verb) in enumerate(READING.items()):
        (tmp_path / str(number)).mkdir()
        with Checkpointer(root) as ck:
            verb(ck, tmp_path / str(number))
        assert snapshot(root) == before, name
    for said in every_command(root):
        assert said.status in (0, 1)
    assert snapshot(root) == before


@pytest.mark.usefixtures("careless")
def test_every_object_is_read_with_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is far too large takes no memory."""
    unlimited: list[str] = []
    get = LocalStore.get

    async def spy(self: LocalStore, path: str, *, limit: int | None = None) -> Blob:
        if limit is None and not path.startswith("_probe-"):
            unlimited.append(path)
        return await get(self, path, limit=limit)

    monkeypatch.setattr(LocalStore, "get", spy)
    root = copy(tmp_path / "root")
    for number, (name, verb) in enumerate(READING.items()):
        (tmp_path / str(number)).mkdir()
        with Checkpointer(root) as ck:
            verb(ck, tmp_path / str(number))
        assert unlimited == [], name
    for said in every_command(root):
        assert unlimited == [], said
    monkeypatch.chdir(tmp_path)
    assert command("encrypt", root, "--encryption", make_key(tmp_path / "a.key"), "--yes").status == 0
    assert unlimited == []


@pytest.mark.parametrize("name", READING_DAMAGED)
def test_reading_a_damaged_root_writes_nothing(tmp_path: Path, name: str) -> None:
    root = copy(tmp_path / "root")
    (root / object_paths.LATEST).unlink()
    before = snapshot(root)
    with Checkpointer(root) as ck:
        assert READING_DAMAGED[name](ck, tmp_path)
    assert snapshot(root) == before
