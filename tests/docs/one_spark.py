"""The JVM that all pages of the docs share, and the examples that need no JVM of their own."""

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.docs.shared_spark import SharedSpark, shared_spark
from tests.jvm import INTERPRETED
from tests.servers import Server


def credentials(server: Server) -> dict[str, str]:
    """Return the variables in which tools of AWS look for the credentials of a server."""
    client = server.storage_options["client_kwargs"]
    return {
        "AWS_ACCESS_KEY_ID": server.storage_options["key"],
        "AWS_SECRET_ACCESS_KEY": server.storage_options["secret"],
        "AWS_ENDPOINT_URL": client["endpoint_url"],
        "AWS_DEFAULT_REGION": client["region_name"],
    }


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SharedSpark]:
    """A JVM, in which Spark's tasks have the credentials of the S3 server if there is one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CHECKPOINTER_", "AWS_"))}
    environment["JDK_JAVA_OPTIONS"] += f" {INTERPRETED}"  # The programs of README run with plans that are compiled.
    with suppress(pytest.skip.Exception):  # Only the section that needs the server is skipped.
        environment |= credentials(request.getfixturevalue("s3_server"))
    with shared_spark(tmp_path_factory.mktemp("one-spark") / "shop", environment) as spark:
        yield spark
