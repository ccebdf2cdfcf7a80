"""The tutorial is done as it stands: each section is a test, in the order of the text, in one folder.

Most jobs run in the JVM of all pages. Java starts anew for the job that is killed, since the kill ends it too.
"""

import sys
import uuid

import pytest

from tests.docs import shared_spark
from tests.docs.one_spark import credentials
from tests.docs.pages import DOCS, Reader, blocks, sections
from tests.docs.shared_spark import SharedSpark
from tests.servers import Server

TUTORIAL = DOCS / "tutorial.md"
ON_S3 = "The same on S3"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, one_spark: SharedSpark) -> Reader:
    commands = tmp_path_factory.mktemp("tutorial") / "bin"
    reader = Reader.with_commands(one_spark.empty(), commands)
    (commands / "python").write_text(
        f"""#!/bin/sh
        [ -z "$DIE_IN_BATCH" ] && exec {sys.executable} {shared_spark.__file__} "$@"
        unset PYSPARK_GATEWAY_PORT
        exec {sys.executable} "$@"
        """
    )
    reader.environment |= one_spark.environment
    return reader


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
        reader.environment |= credentials(server)
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
