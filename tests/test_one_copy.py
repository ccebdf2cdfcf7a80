"""A second name of a package gives its modules, each as it was, also when threads import several at the same time."""

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from pyspark_checkpointer.one_copy import import_as

PACKAGE = """
import threading, types

both = threading.Barrier(2)

class Meeting(types.ModuleType):
    # The import system gives a module the spec of the other name before it has the finder execute it.
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "__spec__" and value.name.startswith("other_name."):
            both.wait(60)
"""
MODULE = """
import sys
from real_place import Meeting

sys.modules[__name__].__class__ = Meeting
"""


@pytest.fixture
def other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package `real_place`, whose modules `one` and `two` go on only when both are being imported."""
    (tmp_path / "real_place").mkdir()
    for name, text in {"__init__": PACKAGE, "one": MODULE, "two": MODULE, "plain": ""}.items():
        (tmp_path / "real_place" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    import_as("other_name", "real_place")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("real_place", "other_name")]:
        del sys.modules[name]


def imported(name: str) -> ModuleType:
    return importlib.import_module(f"other_name.{name}")


def check(name: str, module: ModuleType) -> None:
    assert module is sys.modules[f"real_place.{name}"] is sys.modules[f"other_name.{name}"]
    assert module.__name__ == f"real_place.{name}"
    assert module.__spec__ is not None
    assert module.__spec__.name == f"real_place.{name}"
    assert str(module.__spec__.origin).endswith(f"{name}.py")


@pytest.mark.usefixtures("other_name")
def test_two_names_are_one_module_with_the_spec_of_the_first() -> None:
    check("plain", imported("plain"))


@pytest.mark.usefixtures("other_name")
def test_threads_that_import_two_modules_at_the_same_time_each_get_the_right_one() -> None:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(imported, ("one", "two"), timeout=100)
    check("one", one)
    check("two", two)
