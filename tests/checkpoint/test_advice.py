"""What an error advises keeps the state, or says what else does before it says what destroys it."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyspark_checkpointer
from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.checkpoint import save_bytes
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint
from pyspark_checkpointer.errors import IllegalArgumentError
from tests.world import World

SOURCES = sorted(Path(pyspark_checkpointer.__file__).parent.rglob("*.py"))

DESTROYS = re.compile(r"drop\(\)|\bremove (it|them|both)\b|\bdelete (it|them|the \w+)\b|\bempty (it|both)\b")
KEEPS = re.compile(r"keeps?\b|note that|in its place|going on from|retention")

REFUSED: dict[str, tuple[Callable[[Checkpoint], object], Callable[[Checkpoint], object]]] = {
    "a map over bytes": (
        lambda cp: cp.snapshot("old", 0, b"kept"),
        lambda cp: cp.save("old", KeyedState({"a": 1})),
    ),
    "bytes over a map": (
        lambda cp: cp.save("old", KeyedState({"kept": 1})),
        lambda cp: cp.snapshot("old", 0, b"new"),
    ),
    "bytes laid out otherwise": (
        lambda cp: (save_bytes.declare(cp.attempt, "old", {"v": 1}), cp.snapshot("old", 0, b"kept")),
        lambda cp: save_bytes.declare(cp.attempt, "old", {"v": 2}),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_following_the_first_advice_keeps_what_was_there(world: World, name: str) -> None:
    before, after = REFUSED[name]
    client = world.actor()
    with client.begin() as cp:
        before(cp)
    old = client.restore().operator("old").partition(0) if name != "bytes over a map" else None  # type: ignore[union-attr]
    cp = client.begin()
    with pytest.raises(IllegalArgumentError) as caught:
        after(cp)
    message = str(caught.value)
    assert message.index("restore(rename=") < message.index("drop() deletes it")
    (advice,) = re.findall(r"restore\(rename=(\{.*?\})\)", message)
    client.restore(rename=ast.literal_eval(advice))
    with client.begin() as cp:
        after(cp)
    restored = world.actor().restore()
    assert restored is not None
    if old is None:
        assert restored.keyed("old-old")["kept"] == 1
    else:
        assert restored.operator("old-old").partition(0) == old


def texts(source: Path) -> Iterator[str]:
    """The texts of errors and warnings, each put together again."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Raise | ast.Return | ast.Call):
            for part in ast.walk(node):
                if isinstance(part, ast.JoinedStr):
                    yield "".join(p.value if isinstance(p, ast.Constant) else "…" for p in part.values)  # type: ignore[misc]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_error_names_first_what_destroys(source: Path) -> None:
    for text in texts(source):
        if found := DESTROYS.search(text):
            assert KEEPS.search(text[: found.start()]), f"{source.name}: {text}"
