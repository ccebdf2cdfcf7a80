"""What somebody else wrote into a store is shown as text: it moves no cursor, and is no part of a page."""

import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.cli.app import VERBS
from pyspark_checkpointer.manifests.model import Json
from tests.proof.forgery import copy, forge
from tests.proof.verbs import CHANGING, COMMANDS, command, whole_command_line

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\x85\u2028\u202e\u2066\u200b\ufeff\u061c\U000e0041\x00\r\n\x08"
MARKUP = "'\"></td></table><script>owned()</script><img src=x onerror=owned()><a href=javascript:owned()>{{7*7}}&lt;"
HOSTILE = ESCAPES + MARKUP


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose every text that may be any text is hostile."""
    root = copy(tmp_path / "root")

    def manifest(value: dict[str, Json]) -> None:
        value["properties"][HOSTILE] = value["positions"][HOSTILE] = HOSTILE
        value["watermark"] = HOSTILE
        spark = {"location": HOSTILE, "offsets": f"v1\n{HOSTILE}", "before": [HOSTILE]}
        value["job"] = {"query_id": HOSTILE, "run_id": HOSTILE, "batch_id": 1, "driver": HOSTILE, "spark": spark}
        value["operators"][MARKUP[:40].replace("/", "")] = value["operators"].pop("wide") | {
            "segments": None,
            "objects": [],
            "chains": {},
        }

    def catalog(value: dict[str, Json]) -> None:
        value["entries"][1]["name"] = HOSTILE

    def pointer(value: dict[str, Json]) -> None:
        value["writer"]["instance"] = value["nonce"] = HOSTILE

    forge(root, "manifest", manifest)
    forge(root, "catalog", catalog)
    forge(root, "pointer", pointer)
    return root


def acting(text: str) -> set[str]:
    """Characters that a terminal acts on, or that hide."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")}


def test_every_verb_is_typed() -> None:
    assert {name for name, *_ in (*COMMANDS, *CHANGING)} | {"export"} == {verb.name for verb in VERBS}


@pytest.mark.usefixtures("careless")
def test_no_verb_lets_a_terminal_act(hostile: Path, tmp_path: Path) -> None:
    shown = 0
    for said in whole_command_line(hostile, tmp_path / "aside"):
        assert acting(said.out + said.err) == set()
        shown += "owned" in said.out + said.err
    assert shown > 5
    damaged = copy(tmp_path / "damaged")
    forge(damaged, "pointer", lambda value: value["committed"].update(id=HOSTILE))
    forge(damaged, "catalog", lambda value: value["entries"][0].update(id=HOSTILE))
    for said in (
        *whole_command_line(damaged, tmp_path / "none"),
        command("show", damaged, "--debug"),
        command("show", damaged, HOSTILE),
    ):
        assert acting(said.out + said.err) == set()


class Tags(HTMLParser):
    """The tags of a page, and their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    @classmethod
    def of(cls, page: str) -> "Tags":
        parser = cls()
        parser.feed(page)
        return parser


@pytest.mark.usefixtures("careless")
def test_a_page_has_no_tag_and_no_attribute_of_a_stores_own(hostile: Path, tmp_path: Path) -> None:
    pages = []
    for number, root in enumerate((copy(tmp_path / "honest"), hostile)):
        file = tmp_path / f"{number}.html"
        assert command("report", root, "-o", file).status in (0, 1)
        pages.append(file.read_text(encoding="utf-8"))
    honest, forged = map(Tags.of, pages)
    assert "owned()" in pages[1]
    assert "7*7" in pages[1]
    assert forged.tags - honest.tags <= {"em"}
    assert forged.attributes <= honest.attributes
    assert "default-src 'none'" in pages[1]
    notebook = Checkpointer(hostile)._repr_html_()
    assert Tags.of(notebook).tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert Tags.of(notebook).attributes <= {"style"}
