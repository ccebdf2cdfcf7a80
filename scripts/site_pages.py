"""Pages of the site that are no files of docs/: a hook of mkdocs (see mkdocs.yml).

README is the home page. Other Markdown files of the repository become pages too, so that links between them and docs/
work in a checkout and on the site. A link to a file that is no page, such as a test, keeps its words alone on the site.
A link to a file that does not exist is a warning, and `make docs` makes an error of it.
"""

import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results/full"

# A hook is told everything below "mkdocs" as far as strict builds count it.
log = logging.getLogger("mkdocs.hooks.site_pages")

PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    f"{RESULTS}/README.md": "benchmarks/results.md",
}
"""Files of the repository, and the pages that they become; one that does not exist is left out."""

LINK = re.compile(r"(?P<begin>!?\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\()(?P<target>[^)\s]+)(?P<end>\))")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)
NAMED_FENCE = re.compile(r"^```(\w+) +([^\n=]+)$", re.MULTILINE)
"""A block whose first line also says what it shows, as in SPEC.md; the site knows that only as a title."""


def site_files() -> dict[str, str]:
    """Return where the files of the repository are on the site, by their paths."""
    pages = {source: target for source, target in PAGES.items() if (ROOT / source).exists()}
    pages |= {f"manifests/{path.name}": f"format/{path.name}" for path in (ROOT / "manifests").glob("*.md")}
    pages |= {f"{RESULTS}/{path.name}": f"benchmarks/{path.name}" for path in (ROOT / RESULTS).glob("*.svg")}
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository to the site."""
    for source, target in site_files().items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to pages of the site, and fill in the commands of the command line."""
    here = page.file.src_uri
    sources = {target: source for source, target in site_files().items()}
    source = sources.get(here, f"docs/{here}")
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # the tabs above have it, and code of README is wide
    if here == "reference/cli.md":
        markdown = markdown.replace("<!-- commands -->", commands())
    parts = FENCE.split(markdown)
    return "".join(
        NAMED_FENCE.sub(r'```\1 title="\2"', part, count=1)
        if part.startswith("```")
        else _relink(part, source, here, files)
        for part in parts
    )


PRIVATE = re.compile(r'id="pyspark_checkpointer[\w.]*\.(_\w*)"')


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warn of private members in the reference, which an option can bring in without notice."""
    for name in PRIVATE.findall(html):
        log.warning("%s shows the private name %s: see the options of its entries", page.file.src_uri, name)
    return html


def _relink(text: str, source: str, here: str, files: Files) -> str:
    """Return text whose links go to the site's pages. `source` is the file that it is from, `here` its page."""
    known = site_files()

    def replace(match: re.Match[str]) -> str:
        parts = urlsplit(match["target"])
        if parts.scheme or parts.netloc or not parts.path:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), parts.path))
        target = known.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target is not None and files.get_file_from_path(target) is not None:
            relative = posixpath.relpath(target, posixpath.dirname(here) or ".")
            anchor = f"#{parts.fragment}" if parts.fragment else ""
            return f"{match['begin']}{relative}{anchor}{match['end']}"
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which does not exist", source, match["target"])
        return match["words"]

    return LINK.sub(replace, text)


def commands() -> str:
    """Return the reference of the command line as Markdown: each verb as its `--help` says."""
    sys.path.insert(0, str(ROOT / "src"))
    from pyspark_checkpointer.cli.app import checkpointer

    return "\n".join(_command(name, command) for name, command in sorted(checkpointer.commands.items()))


def _command(name: str, command: click.Command) -> str:
    context: Any = command.context_class(
        command, info_name=f"checkpointer {name}", terminal_width=88, max_content_width=88
    )
    return f"## checkpointer {name}\n\n```text\n{command.get_help(context)}\n```\n"
