"""Roots that are understood, and roots that are refused before anything is opened."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.url import Location, above, parse


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", Location("s3", "bucket", "")),
        ("s3://bucket/", Location("s3", "bucket", "")),
        ("S3://bucket/jobs/orders/", Location("s3", "bucket", "jobs/orders")),
        ("s3a://bucket/a b/%20/€", Location("s3a", "bucket", "a b/%20/€")),
        ("abfs://container/path", Location("abfs", "container", "path")),
        ("az://container/path", Location("az", "container", "path")),
        (
            "abfss://container@account.dfs.core.windows.net/path",
            Location("abfss", "container", "path", "account.dfs.core.windows.net"),
        ),
        ("memory://name", Location("memory", "name", "")),
        ("gs://bucket/path", Location("gs", "bucket", "path")),
        ("oss://bucket/path", Location("oss", "bucket", "path")),
        ("s3://arn:aws:s3:eu-1:1:accesspoint/x/a:b@c", Location("s3", "arn:aws:s3:eu-1:1:accesspoint", "x/a:b@c")),
        ("sftp://host:22/x", Location("sftp", "host:22", "x")),
        ("sftp://[::1]:22/x", Location("sftp", "[::1]:22", "x")),
        ("file:///tmp/a%20b", Location("file", "", "/tmp/a%20b")),
        ("file:/tmp/a?b#c", Location("file", "", "/tmp/a?b#c")),
        ("file://localhost/tmp/x", Location("file", "", "/tmp/x")),
        ("/tmp/a?b#c/../d/", Location("file", "", "/tmp/d")),
        (Path("/tmp/x"), Location("file", "", "/tmp/x")),
        ("dbfs:/Volumes/c/s/v", Location("dbfs", "", "Volumes/c/s/v")),
        ("DBFS:/Volumes/c/s/v/jobs/orders/", Location("dbfs", "", "Volumes/c/s/v/jobs/orders")),
        ("dbfs:///Volumes/c/s/v/me@home.example/a%20b", Location("dbfs", "", "Volumes/c/s/v/me@home.example/a%20b")),
        ("/volumes/c/s/v", Location("file", "", "/volumes/c/s/v")),
        ("/Volumes-2/c/s/v", Location("file", "", "/Volumes-2/c/s/v")),
        ("/data/Volumes/c/s/v", Location("file", "", "/data/Volumes/c/s/v")),
    ],
)
def test_roots_are_understood(url: Any, location: Location) -> None:
    assert parse(url) == location
    assert parse(location.url) == location


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "the root is empty"),
        ("  ", "the root is empty"),
        ("a\0b", "holds a NUL character"),
        (b"/tmp", "expected a folder or a URL"),
        (None, "expected a folder or a URL"),
        ("s3:///path", "names no bucket"),
        ("abfs://", "names no bucket"),
        ("abfss://container@/path", "names no account"),
        ("s3://bucket/a//b", "no empty"),
        ("s3://bucket/../b", "no empty"),
        ("s3://bucket/x?versionId=1", "no query"),
        ("s3://bucket/x#y", "no query"),
        ("file://host/path", "names a host"),
        ("s3://name@bucket/x", "must not hold credentials"),
        ("s3://bucke[t/x", "not a URL"),
        ("S3:bucket/x", "S3:…: a URL has two slashes, as s3://bucket/path"),
        ("s3://a\u2100b/x", "not a URL"),
        ("x y://bucket", "not the protocol of a URL"),
        ("simplecache::s3://bucket", "not the protocol of a URL"),
        ("/Volumes/c/s/v/x", "is a mount, on which.*the URL of this folder, dbfs:/Volumes/c/s/v/x$"),
        ("/tmp/../Volumes/c/s/v/x/", "the URL of this folder, dbfs:/Volumes/c/s/v/x$"),
        (Path("/Volumes/c/s/v"), "the URL of this folder, dbfs:/Volumes/c/s/v$"),
        ("file:/Volumes/c/s/v/x", "the URL of this folder, dbfs:/Volumes/c/s/v/x$"),
        ("file:///Volumes/c/s/v/x", "the URL of this folder, dbfs:/Volumes/c/s/v/x$"),
        ("local:///Volumes/c/s/v/x", "the URL of this folder, dbfs:/Volumes/c/s/v/x$"),
        ("/dbfs/Volumes/c/s/v/x", "/dbfs/Volumes/c/s/v/x: is a mount.*this folder, dbfs:/Volumes/c/s/v/x$"),
        ("/Volumes", "is a mount"),
        ("dbfs:/Volumes/c/s", "dbfs:/Volumes/c/s: names no volume; expected dbfs:/Volumes/catalog/schema/volume/path"),
        ("dbfs:/Volumes", "names no volume"),
        ("dbfs:/mnt/x", "dbfs:…: names no volume; expected dbfs:/Volumes/catalog/schema/volume/path"),
        ("dbfs:/volumes/c/s/v/x", "names no volume"),
        ("dbfs://Volumes/c/s/v/x", "dbfs:…: names no volume"),
        ("dbfs:Volumes/c/s/v/x", "a URL has two slashes"),
        ("dbfs:/Volumes/c/s/v/../x", "no empty, '.' or '..' parts"),
        ("dbfs:/Volumes/c//v/x", "no empty"),
        ("dbfs:/Volumes/c/s/v/x?o=1", "dbfs:/Volumes/c/s/v/x: a root has no query"),
        ("s3://bucket/jo\tbs", "has a tab or the end of a line"),
        ("s3://bucket/jobs\n", "has a tab or the end of a line"),
        ("dbfs:/Volumes/c/s/v/x\n", "has a tab or the end of a line"),
        ("nosuch://bucket/x", "unknown protocol 'nosuch'"),
        ("oss://bucket/x", "needs the package ossfs"),
        ("https://host/x", r'cannot be made conditional.*fencing="none"'),
    ],
)
def test_roots_are_refused_with_a_reason(url: Any, reason: str) -> None:
    with pytest.raises(IllegalArgumentError, match=reason):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("s3://bucket/a/b", "s3://bucket/a"),
        ("s3://bucket/a", "s3://bucket"),
        ("s3://bucket", None),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net"),
        ("dbfs:/Volumes/c/s/v/a/b", "dbfs:/Volumes/c/s/v/a"),
        ("dbfs:/Volumes/c/s/v/a", "dbfs:/Volumes/c/s/v"),
        ("dbfs:/Volumes/c/s/v", None),
    ],
)
def test_above_a_root_is_a_folder_up_to_the_bucket_or_the_volume(url: str, folder: str | None) -> None:
    assert above(url) == folder


def test_a_disk_of_a_mac_is_no_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    """That system mounts each of its disks at this path."""
    monkeypatch.setattr("sys.platform", "darwin")
    assert parse("/Volumes/Backup/state") == Location("file", "", "/Volumes/Backup/state")


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:hunter22@bucket/x",
        "abfs://container:hunter22@account.dfs.core.windows.net/x",
        "https://user:hunter22@host/x",
        "https://account.blob.core.windows.net/container?sv=1&sig=hunter22",
        "s3://bucket/x?secret=hunter22",
        "s3://bucket/x#hunter22",
        "nosuch://user:hunter22@host/x",
        "s3://AKIAKEY:hunter22/with/slashes@bucket/x",
        "s3://AKIAKEY:22/hunter22@bucket/x",
        "s3://AKIAKEY:hunter22?x@bucket",
        "s3://AKIAKEY:hunter22#x@bucket",
        "s3:/AKIAKEY:hunter22@bucket/x",
        "sftp://user:hunter22/x@host/x",
        "s3:AKIAKEY:hunter22@bucket",
        "gs:AKIAKEY:hunter22@bucket/x",
        "wasbs:AKIAKEY:hunter22@bucket",
        "https:/user:hunter22@host/x",
        "ftp:///user:hunter22@host/x",
        Path("sftp://user:hunter22@host/x"),
        "abfss://user%3Ahunter22@account.dfs.core.windows.net/x",
        "az://hunter22==@container/x",
        "abfss://container@account;sig=hunter22/x",
        b"s3://AKIAKEY:hunter22@bucket/x",
        ["s3://AKIAKEY:hunter22@bucket/x"],
        "s3://AKIAKEY%3Ahunter22%40bucket/x",
        "dbfs://AKIAKEY:hunter22@host/Volumes/c/s/v/x",
        "dbfs:/AKIAKEY:hunter22@host/x",
        "dbfs:/Volumes/c/s/v/x?token=hunter22",
        "dbfs:/Volumes/c/s/v/x#hunter22",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url: Any) -> None:
    with pytest.raises(IllegalArgumentError) as raised:
        open_store(url)
    assert "hunter22" not in str(raised.value)
    assert "AKIAKEY" not in str(raised.value)


@pytest.mark.parametrize(
    "changes", [{"fencing": "maybe"}, {"concurrency": 0}, {"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}]
)
def test_settings_that_cannot_be_right(changes: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError):
        open_store("memory://x", **changes)


def test_opening_does_no_io_and_imports_no_cloud_package() -> None:
    program = """if True:
        import socket, sys
        from pyspark_checkpointer.storage import open_store
        def refuse(*_): raise AssertionError("opened a connection")
        socket.socket = socket.create_connection = refuse
        stores = [open_store(url) for url in ("s3://b/x", "abfs://c/x", "abfss://c@a.dfs.core.windows.net/x")]
        stores.append(open_store("dbfs:/Volumes/c/s/v/x"))
        assert not {"s3fs", "adlfs", "gcsfs", "google", "botocore", "azure", "aiohttp"} & sys.modules.keys()
        print(*stores)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() == (
        "<S3Store s3://b/x> <AzureStore abfs://c/x> <AzureStore abfss://c@a.dfs.core.windows.net/x> "
        "<VolumeStore dbfs:/Volumes/c/s/v/x>"
    )


@pytest.mark.parametrize(
    ("package", "url"),
    [("s3fs", "s3://b/x"), ("adlfs", "abfs://c/x"), ("gcsfs", "gs://b/x"), ("aiohttp", "dbfs:/Volumes/c/s/v/x")],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str, url: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(IllegalArgumentError, match=rf"{url}: needs the package {package}: pip install"):
        open_store(url)
