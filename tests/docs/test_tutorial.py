"""The tutorial is done as it stands: each section is a test, in the order of the text, in one folder.

Spark starts seven times in all: that is most of the time.
"""

import uuid

import pytest

from tests.docs.pages import DOCS, Reader, blocks, sections
from tests.servers import Server

TUTORIAL = DOCS / "tutorial.md"
ON_S3 = "The same on S3"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("tutorial")
    return Reader.with_commands(folder / "shop", folder / "bin")


_done: list[str] = []
"""The sections that were done without an error. A section needs all those before it."""


@pytest.mark.parametrize("section", sections(TUTORIAL))
def test_a_section_of_the_tutorial(section: str, reader: Reader, request: pytest.FixtureRequest) -> None:
    before = sections(TUTORIAL)[: sections(TUTORIAL).index(section)]
    if _done != before:
        pytest.skip("a section before it failed, or was not run")
    if section == ON_S3:
        server: Server = request.getfixturevalue("s3_server")
        reader.replacements["s3://bucket"] = f"{server.url}/{uuid.uuid4().hex}"
        reader.environment |= {
            "AWS_ACCESS_KEY_ID": server.storage_options["key"],
            "AWS_SECRET_ACCESS_KEY": server.storage_options["secret"],
            "AWS_ENDPOINT_URL": server.storage_options["client_kwargs"]["endpoint_url"],
            "AWS_DEFAULT_REGION": server.storage_options["client_kwargs"]["region_name"],
        }
    for block in blocks(TUTORIAL):
        if block.section == section:
            reader.do(block)
    _done.append(section)


def test_the_tutorial_has_its_sections() -> None:
    assert len(sections(TUTORIAL)) == 10
    assert sections(TUTORIAL)[-1] == ON_S3
    commands = "".join(block.text for block in blocks(TUTORIAL) if block.language == "sh")
    assert commands.count("python job.py") == 6
    assert commands.count("python visits.py") == 1
