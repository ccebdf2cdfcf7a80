"""The settings of a bucket that matter to a root, as the services tell them."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("adlfs")

from azure.core.exceptions import HttpResponseError

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.azure.container import read_rules
from pyspark_checkpointer.storage.base import BucketRule
from pyspark_checkpointer.storage.gcs.bucket import rules_of
from tests.storage.fake import Answer, gives, says, serving, tells


def xml(text: str) -> Answer:
    def answer(handler: Any) -> None:
        body = f'<?xml version="1.0"?>{text}'.encode()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def rule(name: str, action: str, prefix: str = "", status: str = "Enabled") -> str:
    return f"<Rule><ID>{name}</ID><Filter><Prefix>{prefix}</Prefix></Filter><Status>{status}</Status>{action}</Rule>"


EXPIRES = "<Expiration><Days>30</Days></Expiration>"
ABORTS = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>2</DaysAfterInitiation></AbortIncompleteMultipartUpload>"
NONCURRENT = "<NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays></NoncurrentVersionExpiration>"
NOTHING = (
    says(404, "NoSuchLifecycleConfiguration"),
    xml("<VersioningConfiguration/>"),
    says(404, "ObjectLockConfigurationNotFoundError"),
    says(404, "ServerSideEncryptionConfigurationNotFoundError"),
)


def of_s3(*answers: Answer) -> dict[str, BucketRule]:
    with serving(*answers) as server:
        found = run_sync(server.place("s3").open().bucket_rules())
    return {one.name: one for one in found}


def lifecycle(*rules: str) -> dict[str, BucketRule]:
    return of_s3(xml(f"<LifecycleConfiguration>{''.join(rules)}</LifecycleConfiguration>"), *NOTHING[1:])


def test_a_bucket_without_settings() -> None:
    assert {name: one.found for name, one in of_s3(*NOTHING).items()} == {
        "expiry by age": "no rule",
        "broken uploads": "no rule",
        "versioning": "off",
        "object lock": "no retention by default",
        "encryption": "not set",
    }


@pytest.mark.parametrize("prefix", ["", "ro", "root", "root/", "root/artifacts/"])
def test_a_rule_that_deletes_by_age_does_harm(prefix: str) -> None:
    found = lifecycle(rule("old", EXPIRES, prefix))["expiry by age"]
    assert (found.found, found.harmful) == ("rule 'old'", True)


@pytest.mark.parametrize("kind", ["GLACIER", "DEEP_ARCHIVE"])
def test_a_rule_that_archives_does_harm(kind: str) -> None:
    moves = f"<Transition><Days>30</Days><StorageClass>{kind}</StorageClass></Transition>"
    found = lifecycle(rule("cold", moves))["expiry by age"]
    assert (found.found, found.harmful) == ("rule 'cold' archives", True)


@pytest.mark.parametrize(
    "other",
    [
        rule("x", EXPIRES, "root2"),
        rule("x", EXPIRES, "", "Disabled"),
        rule("x", ABORTS),
        rule("x", NONCURRENT),
        rule("x", "<Transition><Days>30</Days><StorageClass>STANDARD_IA</StorageClass></Transition>"),
        rule("x", EXPIRES).replace("<Prefix></Prefix>", "<Tag><Key>tmp</Key><Value>1</Value></Tag>"),
        rule("x", EXPIRES).replace(
            "<Prefix></Prefix>", "<And><Prefix></Prefix><Tag><Key>tmp</Key><Value>1</Value></Tag></And>"
        ),
    ],
)
def test_other_rules_delete_nothing_of_the_root(other: str) -> None:
    assert lifecycle(other)["expiry by age"] == BucketRule("expiry by age", "no rule")


def test_a_rule_for_broken_uploads_is_seen() -> None:
    assert lifecycle(rule("x", ABORTS))["broken uploads"] == BucketRule("broken uploads", "aborted after 2 days")
    assert "add a rule" in str(lifecycle(rule("x", ABORTS, "other/"))["broken uploads"].advice)


def test_versions_need_a_rule_of_their_own() -> None:
    on = xml("<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")
    rules = xml(f"<LifecycleConfiguration>{rule('x', NONCURRENT)}</LifecycleConfiguration>")
    assert "cleanup frees nothing" in str(of_s3(NOTHING[0], on, *NOTHING[2:])["versioning"].advice)
    assert of_s3(rules, on, *NOTHING[2:])["versioning"] == BucketRule("versioning", "on")


def test_a_lock_and_a_key_are_named() -> None:
    lock = xml(
        "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>"
        "<Mode>COMPLIANCE</Mode><Days>7</Days></DefaultRetention></Rule></ObjectLockConfiguration>"
    )
    key = xml(
        "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms"
        "</SSEAlgorithm></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>"
    )
    found = of_s3(*NOTHING[:2], lock, key)
    assert found["object lock"].found == "compliance for 7 days"
    assert found["object lock"].advice
    assert found["encryption"].found == "aws:kms, which needs kms:GenerateDataKey and kms:Decrypt"


@pytest.mark.parametrize("code", ["AccessDenied", "NotImplemented"])
def test_what_may_not_be_asked_is_not_known(code: str) -> None:
    assert {one.found for one in of_s3(says(403, code)).values()} == {f"not known ({code})"}


def test_the_settings_of_google() -> None:
    plain = {"name": "bucket", "versioning": {"enabled": False}}
    with serving(gives(200, plain)) as server:
        found = run_sync(server.place("gcs").open().bucket_rules())
    assert [(one.name, one.found) for one in found] == [
        ("expiry by age", "no rule"),
        ("versioning", "off"),
        ("soft delete", "off"),
        ("retention policy", "none"),
        ("encryption", "by the service"),
    ]
    assert server.requests == ["GET /storage/v1/b/bucket"]
    with serving(tells(403, "forbidden", "no")) as server:
        (one,) = run_sync(server.place("gcs").open().bucket_rules())
    assert one.found == "not known: needs storage.buckets.get"


@pytest.mark.parametrize(
    ("bucket", "name", "found", "harmful"),
    [
        ({"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "soft delete", "for 7 days", False),
        ({"retentionPolicy": {"retentionPeriod": "86400"}}, "retention policy", "1 days", True),
        ({"defaultEventBasedHold": True}, "retention policy", "hold", True),
        ({"versioning": {"enabled": True}}, "versioning", "on", False),
        ({"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 3}}]}}, "expiry", "a rule", True),
    ],
)
def test_what_google_keeps_or_deletes(bucket: Any, name: str, found: str, harmful: bool) -> None:
    (one,) = (each for each in rules_of(bucket, "root") if each.name.startswith(name))
    assert found in one.found
    assert one.advice
    assert one.harmful == harmful


@pytest.mark.parametrize(
    "condition",
    [{"isLive": False, "age": 3}, {"daysSinceNoncurrentTime": 3}, {"age": 3, "matchesPrefix": ["other/", "root2"]}],
)
def test_a_rule_of_google_for_something_else(condition: Any) -> None:
    bucket = {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": condition}]}}
    assert rules_of(bucket, "root")[0] == BucketRule("expiry by age", "no rule")


class Azure:
    """The clients of an account and of a container, which tell what a test says."""

    def __init__(self, policy: Any, account: Any) -> None:
        self.policy, self.account = policy, account

    async def get_container_properties(self, **_: Any) -> Any:
        return self._tell(self.policy)

    async def get_service_properties(self, **_: Any) -> Any:
        return self._tell(self.account)

    @staticmethod
    def _tell(what: Any) -> Any:
        if isinstance(what, Exception):
            raise what
        return what


@pytest.mark.parametrize(
    ("policy", "days", "found"),
    [
        ({}, None, {"immutability": ("none", False, False), "soft delete": ("off", False, False)}),
        (
            {"has_immutability_policy": True, "has_legal_hold": True},
            7,
            {
                "immutability": ("a policy and a legal hold", True, True),
                "soft delete": ("keeps what was deleted for 7 days", False, False),
            },
        ),
        (
            {"has_legal_hold": True},
            90,
            {
                "immutability": ("a legal hold", True, True),
                "soft delete": ("keeps what was deleted for 90 days", True, False),
            },
        ),
    ],
)
def test_the_settings_of_azure(policy: Any, days: int | None, found: dict[str, tuple[str, bool, bool]]) -> None:
    client = Azure(policy, {"delete_retention_policy": SimpleNamespace(enabled=days is not None, days=days)})
    rules = run_sync(read_rules(client, client, {}))
    assert {rule.name: (rule.found, bool(rule.advice), rule.harmful) for rule in rules} == found


def test_what_azure_refuses_to_tell_is_not_known() -> None:
    refused = HttpResponseError("no")
    refused.error_code = "AuthorizationFailure"
    client = Azure(refused, refused)
    assert {rule.found for rule in run_sync(read_rules(client, client, {}))} == {"not known (AuthorizationFailure)"}
