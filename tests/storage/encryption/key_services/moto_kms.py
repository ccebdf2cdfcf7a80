"""AWS KMS as moto has it, with users of IAM whose signatures and permissions it checks."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

import botocore.session
from moto.server import ThreadedMotoServer

from tests.storage.encryption.key_services.case import ServiceCase

REGION = "eu-central-1"
POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": ["kms:Encrypt", "kms:Decrypt", "kms:DescribeKey"], "Resource": "*"}],
}


class MotoKms:
    """Two keys with an alias each, a user who may use them, and one who may not."""

    def __init__(self) -> None:
        self.server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self._allow("inf")
        self.kms = self.client("kms")
        self.keys = {alias: self.make_key(f"alias/{alias}") for alias in ("orders", "other")}
        self.worker, self.stranger = self._user("worker", allowed=True), self._user("stranger", allowed=False)
        self._allow("0")

    def client(self, service: str, region: str = REGION, user: Mapping[str, str] | None = None) -> Any:
        session = botocore.session.Session()
        user = user or {"AccessKeyId": "root", "SecretAccessKey": "root"}
        return session.create_client(
            service,
            region,
            endpoint_url=self.url,
            aws_access_key_id=user["AccessKeyId"],
            aws_secret_access_key=user["SecretAccessKey"],
        )

    def make_key(self, alias: str, **options: Any) -> str:
        """Make a key, and return its ARN."""
        arn: str = self.kms.create_key(**options)["KeyMetadata"]["Arn"]
        self.kms.create_alias(AliasName=alias, TargetKeyId=arn)
        return arn

    def as_root(self) -> "_AsRoot":
        """Return a block in which the tests may do what they like."""
        return _AsRoot(self)

    def _user(self, name: str, allowed: bool) -> Mapping[str, str]:
        iam = self.client("iam")
        iam.create_user(UserName=name)
        if allowed:
            iam.put_user_policy(UserName=name, PolicyName="keys", PolicyDocument=json.dumps(POLICY))
        found: Mapping[str, str] = iam.create_access_key(UserName=name)["AccessKey"]
        return found

    def _allow(self, requests: str) -> None:
        """Let moto check permissions after so many requests."""
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{self.url}/moto-api/reset-auth", requests.encode(), plain, method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()

    def environment(self, user: Mapping[str, str], url: str | None = None) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": user["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": user["SecretAccessKey"],
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL_KMS": url or self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "no_proxy": "127.0.0.1",
        }

    def rotate(self) -> None:
        with self.as_root():
            self.kms.rotate_key_on_demand(KeyId=self.keys["orders"])

    def case(self) -> ServiceCase:
        return ServiceCase(
            "aws-kms:alias/orders",
            "aws-kms:alias/other",
            self.environment(self.worker),
            (self.worker["SecretAccessKey"],),
            missing="aws-kms:alias/nothing",
            stranger=self.environment(self.stranger),
            nobody=self.environment({"AccessKeyId": "", "SecretAccessKey": ""}),
            down=self.environment(self.worker, "http://127.0.0.1:1"),
            rotate=self.rotate,
        )

    def stop(self) -> None:
        self.server.stop()


class _AsRoot:
    def __init__(self, kms: MotoKms) -> None:
        self.kms = kms

    def __enter__(self) -> None:
        self.kms._allow("inf")

    def __exit__(self, *_: object) -> None:
        self.kms._allow("0")
