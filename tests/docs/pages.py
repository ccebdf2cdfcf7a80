"""Run the blocks of a page in the order of its text, as a reader would.

A page has four kinds of fenced blocks:

* ```` ```python title="job.py" ```` writes a file.
* ```` ```diff title="job.py" ```` changes one: in each part, lines with `-` and ` ` become those with `+` and ` `.
  Parts are separated by a line `@@`.
* ```` ```sh ```` runs commands, in one shell for each block.
* ```` ```text ```` is what the commands before it print. A line `…` stands for any number of lines.

Ids, times, ages, sizes and paths differ from run to run, so they are compared by their form alone.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TIMEOUT_SECONDS = 480  # a loaded machine starts a JVM slowly

_BLOCK = re.compile(
    r"^## (?P<section>[^\n]+)$|"
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_VARIABLE = (
    (re.compile(r"\b(\d{10}|before-rewind-\d+)-[0-9a-f]{8}\b"), r"\1-ID"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b\d+ (s|min|h) ago"), "AGE"),
    (re.compile(r"\b\d+(\.\d)? (B|KiB|MiB)\b"), "SIZE"),
    (re.compile(r"\bsha256 [0-9a-f]{12}\b"), "sha256 DIGEST"),
    (re.compile(r"(?<![\w.])/\S*/(?=shop/|s3/)"), "/"),
    (re.compile(r" +"), " "),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    section: str
    language: str
    title: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, each with the title of its section."""
    found, section = [], ""
    for match in _BLOCK.finditer(page.read_text()):
        if match["section"] is not None:
            section = match["section"]
        else:
            found.append(Block(section, match["language"], match["title"], match["text"]))
    return found


def sections(page: Path) -> list[str]:
    """Return the titles of the sections that have blocks, in order."""
    return list(dict.fromkeys(block.section for block in blocks(page)))


@dataclass(slots=True)
class Reader:
    """Somebody who does what a page says, in a folder that was empty."""

    folder: Path
    environment: dict[str, str]
    replacements: dict[str, str] = field(default_factory=dict)
    """What the page says, and what stands for it here, such as the name of a bucket."""
    _printed: str = ""

    @classmethod
    def with_commands(cls, folder: Path, commands: Path, environment: Mapping[str, str] = os.environ) -> "Reader":
        """Return a reader whose shell has `python` and `checkpointer`, and nothing that says which root is meant."""
        commands.mkdir()
        for name, arguments in (("python", ""), ("checkpointer", " -m pyspark_checkpointer")):
            (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
            (commands / name).chmod(0o755)
        folder.mkdir(exist_ok=True)
        kept = {name: value for name, value in environment.items() if not name.startswith(("CHECKPOINTER_", "AWS_"))}
        return cls(folder, kept | {"PATH": f"{commands}:{kept['PATH']}"})

    def do(self, block: Block) -> None:
        """Do what a block says, or compare what was printed with it."""
        text = self._localised(block.text)
        if block.language == "sh":
            self._printed = self.run("sh", "-ec", text)
        elif block.language == "text":
            assert_printed(text, self._printed)
        elif block.language == "diff":
            file = self.folder / str(block.title)
            file.write_text(changed(file.read_text(), text))
        else:
            assert block.title is not None, f"a block of {block.language} without a title"
            (self.folder / block.title).write_text(text)

    def run(self, *command: str) -> str:
        """Return what a command prints. Raises where it fails."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
        return done.stdout

    def _localised(self, text: str) -> str:
        for said, meant in self.replacements.items():
            text = text.replace(said, meant)
        return text


def changed(text: str, diff: str) -> str:
    """Return a file after the parts of a diff. Each part must fit at exactly one place."""
    for part in re.split(r"^@@\n", diff, flags=re.M):
        lines = [" \n" if line == "\n" else line for line in part.splitlines(keepends=True)]  # editors cut the space
        old = "".join(line[1:] for line in lines if line[0] in "- ")
        new = "".join(line[1:] for line in lines if line[0] in "+ ")
        assert text.count(old) == 1, f"{text.count(old)} places for\n{old}"
        text = text.replace(old, new)
    return text


def assert_printed(expected: str, printed: str) -> None:
    """Raise unless commands printed what a page says, but for what differs from run to run."""
    pattern = "\n".join(".*" if line == "…" else re.escape(line) for line in comparable(expected))
    assert re.fullmatch(pattern, "\n".join(comparable(printed)), re.S), f"printed:\n{printed}\nexpected:\n{expected}"


def comparable(text: str) -> Iterator[str]:
    """Yield the lines of an output, without what differs from run to run."""
    for pattern, name in _VARIABLE:
        text = pattern.sub(name, text)
    for line in text.strip("\n").splitlines():
        yield line.rstrip()
