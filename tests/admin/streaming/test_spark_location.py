"""Open Spark's files where a manifest says they are only if that is where the root itself is."""

from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.admin.streaming import spark_location
from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.storage.signatures.signing_keys import Signing

SECRETS = {"password": "secret"}


def where(location: str | None, *, trusted: bool = False) -> SparkCheckpointLocation:
    return SparkCheckpointLocation(location, None, SECRETS, "none", trusted)


def batch(recorded: str) -> Job:
    return Job("query", "run", 0, None, SparkProgress(recorded, "v1\n{}\n0", ()))


ELSEWHERE = (
    ("/data/root", "memory://elsewhere/x"),
    ("/data/root", "abfss://c@elsewhere.example/x"),
    ("memory://root/x", "/data/spark"),
    ("s3://bucket/root", "/data/spark"),
    ("s3://bucket/root", "s3a://elsewhere/spark"),
    ("gs://bucket/root", "s3://bucket/spark"),
    ("abfs://c@acct.dfs.core.windows.net/root", "abfss://c@elsewhere.dfs.core.windows.net/spark"),
    ("abfs://c@acct.dfs.core.windows.net/root", "abfss://elsewhere@acct.dfs.core.windows.net/spark"),
    ("abfs://c@acct.dfs.core.windows.net/root", "abfss://c@acct.elsewhere.example/spark"),
    ("abfs://c/root", "abfss://c@acct.dfs.core.windows.net/spark"),
    ("sftp://host/root", "sftp://elsewhere/spark"),
    ("sftp://host/root", "ftp://host/spark"),
)
NEAR = (
    ("/data/root", "file:/data/spark"),
    ("s3://bucket/root", "s3a://bucket/spark"),
    ("gs://bucket/root", "gcs://bucket/spark"),
    ("abfs://c@acct.dfs.core.windows.net/root", "abfss://c@acct.dfs.core.windows.net/spark"),
    ("dbfs:/Volumes/a/b/c/root", "dbfs:/Volumes/a/b/d/spark"),
    ("memory://a/root", "memory://a/spark"),
)


@pytest.mark.parametrize(("root", "recorded"), ELSEWHERE)
def test_what_a_manifest_alone_names_elsewhere_is_refused(
    root: str, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(spark_location, "open_files", lambda *args: opened.append(args))
    with pytest.raises(IllegalArgumentError, match=r"give .*--spark-checkpoint") as raised:
        where(None).open(root, batch(recorded))
    assert recorded in str(raised.value)
    assert opened == []
    where(recorded).open(root, batch("memory://other/x"))
    where(None, trusted=True).open(root, batch(recorded))
    assert [place for place, *_ in opened] == [recorded, recorded]  # type: ignore[misc]


@pytest.mark.parametrize(("root", "recorded"), NEAR)
def test_what_a_manifest_names_beside_the_root_is_opened(
    root: str, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(spark_location, "open_files", lambda *args: opened.append(args))
    where(None).open(root, batch(recorded))
    assert opened == [(recorded, SECRETS, "none")]


ACCOUNT = {"account_name": "acct", "account_key": "secret"}
SPARK = "abfss://c@acct.dfs.core.windows.net/spark"


@pytest.mark.parametrize("options", [ACCOUNT, {**ACCOUNT, "account_host": "acct.blob.core.windows.net"}])
def test_the_account_of_the_root_may_stand_in_its_options(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(spark_location, "open_files", lambda *args: opened.append(args))
    SparkCheckpointLocation(None, None, options, "none", is_trusted=False).open("az://c/root", batch(SPARK))
    assert opened == [(SPARK, options, "none")]


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        (ACCOUNT, "abfss://c@elsewhere.dfs.core.windows.net/spark"),
        (ACCOUNT, "abfss://elsewhere@acct.dfs.core.windows.net/spark"),
        (ACCOUNT, "abfss://c@acct.elsewhere.example/spark"),
        ({**ACCOUNT, "account_host": "acct.blob.elsewhere.example"}, "abfss://c@acct.dfs.other.example/spark"),
        ({"account_key": "secret"}, SPARK),
    ],
)
def test_another_account_than_that_in_the_options_is_refused(
    options: dict[str, str], recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_location, "open_files", lambda *args: pytest.fail("was opened"))
    with pytest.raises(IllegalArgumentError, match="--spark-checkpoint"):
        SparkCheckpointLocation(None, None, options, "none", is_trusted=False).open("az://c/root", batch(recorded))


def test_a_recorded_text_with_controls_is_shown_as_text() -> None:
    with pytest.raises(IllegalArgumentError) as raised:
        where(None).open("/data/root", batch("memory://x/\x1b[2J"))
    assert "\x1b" not in str(raised.value)


def test_a_recorded_password_is_not_repeated() -> None:
    with pytest.raises(IllegalArgumentError) as raised:
        where(None).open("/data/root", batch("s3://me:secret@bucket/x"))
    assert "secret" not in str(raised.value)


def test_a_root_whose_signatures_are_checked_is_trusted(tmp_path: Path) -> None:
    assert not Checkpointer(tmp_path).spark_location(None, None).is_trusted
    assert Checkpointer(tmp_path, signing=Signing(("0" * 64,))).spark_location(None, None).is_trusted
