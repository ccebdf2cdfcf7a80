"""The page in a real browser: light, dark, on a phone, printed; it fetches nothing and runs nothing."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from pyspark_checkpointer.cli.report_page import page as pages
from tests.browser import started
from tests.cli.report_page.conftest import report_on
from tests.damage import flip
from tests.servers import ServerUnavailableError

Scheme = Literal["light", "dark"]

CONTRAST = """() => {
  const luminance = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(c => c / 255)
      .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.startsWith("rgba") || !colour.endsWith(", 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const told = [];
  for (const element of document.body.querySelectorAll("*")) {
    if (element.closest("svg")) continue;
    const text = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
    if (!text) continue;
    const [a, b] = [getComputedStyle(element).color, behind(element)].map(luminance).sort((x, y) => y - x);
    told.push([(a + 0.05) / (b + 0.05), text.slice(0, 40)]);
  }
  return told;
}"""

TOO_WIDE = """() => [...document.body.querySelectorAll("*")]
  .filter(e => !e.parentElement.closest(".scroll, svg") && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.outerHTML.slice(0, 100))"""

CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute("aria-label"))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Of this module alone: while it is open, this thread counts as running an event loop."""
    try:
        with started() as running:
            yield running
    except ServerUnavailableError as unavailable:
        if os.environ.get("CHECKPOINTER_REQUIRE_SERVERS"):
            pytest.fail(str(unavailable), pytrace=False)
        pytest.skip(str(unavailable))


@pytest.fixture(scope="module")
def files(hostile_root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages about a whole store, a damaged one, and one that has lost its pointer."""
    folder = tmp_path_factory.mktemp("pages")
    damaged = Path(shutil.copytree(hostile_root, folder / "damaged"))
    for artifact in sorted((damaged / "artifacts" / "totals").glob("*/*"))[::3]:
        flip(artifact)
    lost = Path(shutil.copytree(damaged, folder / "lost"))
    (lost / "_latest").unlink()
    written = {}
    for name, root in (("whole", hostile_root), ("damaged", damaged), ("lost", lost)):
        written[name] = folder / f"{name}.html"
        written[name].write_bytes(pages.render(report_on(root)).encode("utf-8", "xmlcharrefreplace"))
    return written


class Watched:
    """A page, and all that it asked for or complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.said: list[str] = []
        self.failures: list[str | None] = []
        page.on("requestfailed", lambda request: self.failures.append(request.failure))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: self.said.append(dialog.message))

    def open(self, file: Path) -> Page:
        self.page.goto(file.as_uri())
        assert self.requests == [file.as_uri()]
        assert self.said == []
        return self.page


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    with browser.new_page() as page:
        yield Watched(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["whole", "damaged", "lost"])
def test_it_fits_and_can_be_read(watched: Watched, files: dict[str, Path], name: str, scheme: Scheme) -> None:
    watched.page.emulate_media(color_scheme=scheme)
    watched.page.set_viewport_size({"width": 1280, "height": 900})
    page = watched.open(files[name])
    assert page.locator("h1").inner_text().startswith("Nothing is wrong" if name == "whole" else str(page.title()[0]))
    contrast = page.evaluate(CONTRAST)
    assert len(contrast) > 20
    assert [found for found in contrast if found[0] < 4.5] == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    assert page.evaluate(CUT) == []
    for width in (1280, 375):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(TOO_WIDE) == []


def test_drawings_have_text_beside_them(watched: Watched, files: dict[str, Path]) -> None:
    page = watched.open(files["whole"])
    assert page.locator("svg").count() >= 4
    for drawing in page.locator("svg").all():
        assert drawing.locator("> title").text_content()
        assert drawing.locator("> desc").text_content()
        assert drawing.get_attribute("role") == "img"
        assert drawing.locator("rect").count() > 0
    assert page.get_by_role("img", name="Bytes written by each checkpoint").count() == 1
    assert page.locator("figure rect.full").first.bounding_box() is not None


def test_it_prints_on_white_paper_with_nothing_cut_off(watched: Watched, files: dict[str, Path]) -> None:
    watched.page.emulate_media(media="print", color_scheme="dark")
    watched.page.set_viewport_size({"width": 688, "height": 1000})  # A4 between its margins
    for name in files:
        watched.requests.clear()
        page = watched.open(files[name])
        assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--back')") == "#fff"
        assert [found for found in page.evaluate(CONTRAST) if found[0] < 4.5] == []
        assert page.evaluate(CUT) == []
        assert page.evaluate("document.documentElement.scrollWidth") == 688
        assert page.pdf(format="A4", print_background=True).startswith(b"%PDF")


def test_names_do_not_run(watched: Watched, files: dict[str, Path], tmp_path: Path) -> None:
    shown = files["damaged"].read_text()
    policy = shown[shown.index('<meta http-equiv="Content-Security-Policy"') :].split("\n", 1)[0]
    bare = tmp_path / "bare.html"
    bare.write_text(shown.replace(policy, ""))  # so that it is the escaping that is seen to hold
    page = watched.open(bare)
    assert page.title().startswith(page.locator("h1").inner_text())
    assert page.locator("img, script, iframe, object, link").count() == 0
    assert page.get_by_text("onerror=document.title").count() >= 3


def test_the_policy_stops_what_escaping_let_through(watched: Watched, files: dict[str, Path], tmp_path: Path) -> None:
    more = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x' onerror=\"document.title='owned'\">"
    bitten = tmp_path / "bitten.html"
    bitten.write_text(files["whole"].read_text().replace("</body>", f"{more}</body>"))
    watched.page.goto(bitten.as_uri())
    watched.page.wait_for_load_state("load")
    assert watched.page.title() != "owned"
    assert watched.failures == ["csp"]  # the picture was not asked for
    assert len(watched.said) >= 2  # what was refused, one by one
