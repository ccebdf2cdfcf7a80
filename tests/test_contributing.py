"""CONTRIBUTING.md names only what is there, its commands can be run, and its rules for docstrings hold."""

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE) for line in block.splitlines()
]
TARGETS = re.findall(r"\bmake ([a-z-]+)(?=[ `\n])", "\n".join([*COMMANDS, *re.findall(r"`(make [^`]+)`", TEXT)]) + "\n")


def test_the_files_that_it_names_are_there() -> None:
    named = re.findall(r"`((?:\.?\w+/)+[\w.]*)`", TEXT)
    assert len(named) > 12
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_targets_of_make_that_it_names_are_there() -> None:
    there = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"setup", "test", "lint", "prove"} <= set(TARGETS) <= set(there)


@pytest.mark.parametrize("line", [line for line in COMMANDS if "pytest" in line])
def test_a_command_for_tests_finds_some(line: str) -> None:
    """What is found runs in the suite itself."""
    _, python, *arguments = shlex.split(line, comments=True)
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *arguments, "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.search(r"^\d+(/\d+)? tests collected|^\w.*::test_", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    "how_to", ["checkpointer/storage/registry.py", "manifests/codecs.py", "checkpointer/cli/app.py", "tests/sparks.py"]
)
def test_each_how_to_names_only_files_that_are_there(how_to: str) -> None:
    """A path in a how-to is from the root of the repository, from the package, or beside the file."""
    text = (ROOT / how_to).read_text(encoding="utf-8").split('"""')[1]
    assert "How to add a" in text
    named = re.findall(r"`([\w./]+\.(?:py|md|toml))`", text)
    places = (ROOT, ROOT / "checkpointer", (ROOT / how_to).parent, ROOT / "checkpointer" / "cli")
    assert len(named) >= 5
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


FIRST_LINE = 80
"""The most characters of the first line of a docstring."""

NO_VERBS = re.compile("A|All|An|And|Any|Every|For|How|If|It|No|Of|One|Some|The|This|Two|Wh(at|en|ere|ether|ich|o)")
"""First words of docstrings that begin with something else than a verb."""


@cache
def docstrings() -> list[tuple[str, ast.AST, str]]:
    """Return the docstrings of modules, classes and functions, each with its place and its node."""
    paths = sorted(path for folder in ("checkpointer", "manifests") for path in (ROOT / folder).rglob("*.py"))
    found = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    found.append((f"{path.relative_to(ROOT)}:{node.body[0].lineno}", node, text))
    return found


def is_thing(node: ast.AST) -> bool:
    """Return whether the docstring of a node may describe a thing: of a class, and of a property."""
    decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
    return isinstance(node, ast.ClassDef) or any(name.endswith(("property", ".setter")) for name in decorators)


def begins_with_verb(text: str) -> bool:
    """Return whether the first word may be a verb in the imperative: "Return", not "Returns" or "The"."""
    (word,) = re.findall(r"^[\w-]*", text)
    return word[:1].isupper() and not NO_VERBS.fullmatch(word) and (not word.endswith("s") or word.endswith("ss"))


def test_the_first_line_of_a_docstring_is_short() -> None:
    firsts = [(place, text.partition("\n")[0]) for place, _, text in docstrings()]
    assert len(firsts) > 3000
    assert [f"{place}: {first}" for place, first in firsts if len(first) > FIRST_LINE] == []


def test_the_docstring_of_a_module_or_a_function_begins_with_a_verb() -> None:
    texts = [(place, text) for place, node, text in docstrings() if not is_thing(node)]
    assert [f"{place}: {text[:FIRST_LINE]}" for place, text in texts if not begins_with_verb(text)] == []
