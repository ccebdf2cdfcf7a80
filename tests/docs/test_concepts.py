"""The pictures are those that the program draws, nothing in them overlaps, and the glossary has each word once."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.browser import started
from tests.docs.pages import DOCS
from tests.servers import ServerUnavailableError

CONCEPTS = DOCS / "concepts.md"
PICTURES = sorted((DOCS / "assets" / "concepts").glob("*.svg"))

OVERLAPS = """() => {
    const width = Number(document.documentElement.getAttribute("width"));
    const box = shape => { const b = shape.getBBox(); return {l: b.x, r: b.x + b.width, t: b.y, b: b.y + b.height}; };
    const meet = (a, b) => a.l < b.r && a.r > b.l && a.t + 3 < b.b - 3 && a.b - 3 > b.t + 3;
    const within = (a, b) => a.l >= b.l + 2 && a.r <= b.r - 2 && a.t >= b.t - 1 && a.b <= b.b + 1;
    const texts = [...document.querySelectorAll("text")].map(text => ({said: text.textContent, ...box(text)}));
    const boxes = [...document.querySelectorAll("rect")].slice(1).map(box);
    return texts.flatMap((text, number) => [
        ...(text.l < 8 || text.r > width - 8 ? [`${text.said}: leaves the picture`] : []),
        ...boxes.filter(b => meet(text, b) && !within(text, b)).map(() => `${text.said}: lies across a box`),
        ...texts.slice(number + 1).filter(t => meet(text, t)).map(t => `${text.said}: lies on ${t.said}`),
    ]);
}"""


def test_the_pictures_are_those_that_the_program_draws() -> None:
    draw = [sys.executable, DOCS.parent / "scripts" / "draw-concepts", "--check"]
    done = subprocess.run(draw, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.findall(r"\]\(assets/concepts/(\w+\.svg)\)", CONCEPTS.read_text())
    assert sorted(shown) == [picture.name for picture in PICTURES]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with started() as browser:
            yield browser
    except ServerUnavailableError as unavailable:
        if os.environ.get("CHECKPOINTER_REQUIRE_SERVERS"):
            pytest.fail(str(unavailable), pytrace=False)
        pytest.skip(str(unavailable))


def test_no_text_of_a_picture_leaves_its_place_and_dark_is_another_picture_than_light(browser: Browser) -> None:
    for picture in PICTURES:
        seen = []
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme)
            page.goto(picture.as_uri())
            assert page.evaluate(OVERLAPS) == [], picture.name
            seen.append(page.evaluate("getComputedStyle(document.querySelector('.page')).fill"))
            page.close()
        assert seen[0] != seen[1], picture.name


def test_the_glossary_has_each_word_once_in_order() -> None:
    glossary = CONCEPTS.read_text().split("## Glossary")[1]
    words = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)[1:]
    assert words == sorted(set(words))
    explained = re.findall(r"\*([a-z][a-z -]+)\*", CONCEPTS.read_text())
    forms = {
        "fork": "fork of a query",
        "deltas": "delta",
        "retires": "retire",
        "sweeps": "sweep",
        "partitions": "partition",
        "folded": "folding",
    }
    assert {forms.get(word, word) for word in explained} <= set(words)
