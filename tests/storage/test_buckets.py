"""Buckets that keep old versions, or lock them: a job commits, restores and cleans up there as anywhere else."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from tests.servers import Server

Make = Callable[[Any, str], None]


def versioned(client: Any, bucket: str) -> None:
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})


def locked(client: Any, bucket: str) -> None:
    """Every version is kept for a day: nothing of it can be deleted or written over, only hidden by a newer one."""
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    retention = {"Mode": "COMPLIANCE", "Days": 1}
    rule = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": retention}}
    client.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=rule)


@pytest.mark.parametrize(("make", "setting"), [(versioned, "versioning"), (locked, "object lock")])
def test_a_job_runs_in_a_bucket_that_keeps_versions(s3_server: Server, make: Make, setting: str) -> None:
    import botocore.session

    options, bucket = s3_server.storage_options, uuid.uuid4().hex
    client = botocore.session.get_session().create_client(
        "s3",
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        **options["client_kwargs"],
    )
    make(client, bucket)
    root = f"s3://{bucket}/root"
    with Checkpointer(root, options) as ck:
        for number in range(4):
            with ck.begin(epoch=number) as attempt:
                attempt.snapshot("op", 0, b"%d" % number)
                attempt.snapshot("big", 0, bytes(33 << 20) if number == 0 else b"small")
        ck.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
        restored = ck.restore()
        assert restored is not None
        assert restored.operator("op").partition(0) == [b"3"]
        assert len(ck.list_checkpoints()) == 1
        assert ck.verify()
    listed = {entry.path for entry in run_sync(open_store(root, options).list(""))}
    found = client.list_object_versions(Bucket=bucket)
    assert len(listed) < len({version["Key"] for version in found["Versions"]}), "what was deleted is kept"
    assert len([version for version in found["Versions"] if version["Key"] == "root/_latest"]) >= 4
    rules = {rule.name: rule for rule in run_sync(open_store(root, options).bucket_rules())}
    assert rules[setting].advice
