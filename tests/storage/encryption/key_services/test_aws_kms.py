"""What is special about keys of AWS KMS."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.errors import (
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.storage.encryption.key_providers import UnwrapError
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from tests.storage.encryption.key_services.moto_kms import REGION, MotoKms
from tests.storage.encryption.key_services.server import Answer, Server

DATA = bytes(range(48))


@pytest.fixture
def kms(kms_server: MotoKms, become: Callable[[Mapping[str, str]], None]) -> MotoKms:
    become(kms_server.case().environment)
    return kms_server


def test_a_root_knows_the_key_and_not_its_alias(kms: MotoKms, tmp_path: Path) -> None:
    """An alias that is given to another key opens the root no more; the key still does, by its ARN."""
    with kms.as_root():
        old = kms.make_key("alias/moved")
    with Checkpointer(tmp_path / "root", encryption="aws-kms:alias/moved").begin() as cp:
        cp.save("totals", KeyedState({"x": 1}))
    with kms.as_root():
        kms.kms.update_alias(AliasName="alias/moved", TargetKeyId=kms.keys["other"])
    with pytest.raises(InvalidStateError, match=rf"its keys are opened by 'aws-kms' \('{old}'\), not by 'aws-kms' \("):
        Checkpointer(tmp_path / "root", encryption="aws-kms:alias/moved").restore()
    Checkpointer(tmp_path / "root", encryption=f"aws-kms:{old}").rekey("aws-kms:alias/moved")
    assert Checkpointer(tmp_path / "root", encryption="aws-kms:alias/moved").restore() is not None
    assert parse_provider("aws-kms:alias/moved").key == parse_provider(f"aws-kms:{kms.keys['other']}").key


@pytest.mark.parametrize("context", [{}, {"purpose": "secrets"}])
def test_what_was_encrypted_for_another_purpose_is_not_opened(context: dict[str, str], kms: MotoKms) -> None:
    made = kms.client("kms", user=kms.worker).encrypt(KeyId="alias/orders", Plaintext=DATA, EncryptionContext=context)
    with pytest.raises(UnwrapError):
        parse_provider("aws-kms:alias/orders").unwrap(made["CiphertextBlob"])


def test_a_key_of_several_regions_has_one_name(kms: MotoKms) -> None:
    with kms.as_root():
        arn = kms.make_key("alias/everywhere", MultiRegion=True)
    there = arn.replace(REGION, "us-west-2")
    assert arn != there
    assert parse_provider(f"aws-kms:{there}").key == parse_provider("aws-kms:alias/everywhere").key
    assert REGION not in parse_provider(f"aws-kms:{arn}").key


def test_the_region_comes_from_the_name_or_the_environment(kms: MotoKms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(IllegalArgumentError, match="set AWS_DEFAULT_REGION, or give the ARN"):
        parse_provider("aws-kms:alias/orders").wrap(DATA)
    provider = parse_provider(f"aws-kms:{kms.keys['orders']}")
    assert provider.unwrap(provider.wrap(DATA)) == DATA


NOT_AUTHORIZED = "User: arn:aws:iam::1:user/x is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:secret"


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "said"),
    [
        (400, "IncorrectKeyException", "", UnwrapError, "^$"),
        (400, "AccessDeniedException", "The ciphertext refers to a key that does not exist", UnwrapError, "^$"),
        (400, "AccessDeniedException", NOT_AUTHORIZED, StoreRefusedError, "permission denied .*give .* kms:Decrypt"),
        (400, "DisabledException", "", StoreRefusedError, "DisabledException.*: enable it"),
        (400, "ExpiredTokenException", "secret", StoreRefusedError, "ExpiredTokenException: give them as"),
        (400, "NotFoundException", "secret", IllegalArgumentError, "there is no such key"),
        (400, "ThrottlingException", "", ThrottlingError, "asks for fewer requests"),
        (500, "KMSInternalException", "", DependencyError, "KMSInternalException"),
        (503, "", "", DependencyError, "503"),
    ],
)
def test_what_kms_refuses_is_told_apart(
    status: int,
    code: str,
    message: str,
    kind: type[Exception],
    said: str,
    kms: MotoKms,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers are those of KMS, which moto gives in part."""
    body = {"__type": code, "message": message} if code else b""
    server = Server(tmp_path, {"": lambda request: Answer(status, body)})
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", server.url)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with pytest.raises(kind, match=said) as met:
        parse_provider("aws-kms:alias/orders").unwrap(b"wrapped")
    assert "secret" not in str(met.value)
    server.stop()


def test_a_wrong_setting_of_the_environment_is_not_shown(kms: MotoKms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "secret")
    with pytest.raises(StoreRefusedError, match="credentials") as met:
        parse_provider("aws-kms:alias/orders").wrap(DATA)
    assert "secret" not in str(met.value)
