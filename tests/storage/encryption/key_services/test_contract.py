"""All providers that a text can name do the same, whichever service they ask, and fail in the same words."""

import pickle
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.cli.app import checkpointer
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
)
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider, UnwrapError
from pyspark_checkpointer.storage.encryption.key_registry import PROVIDERS, parse_provider
from tests.storage.encryption.key_services.case import Case, ServiceCase
from tests.storage.encryption.key_services.conftest import FILES, SERVICES

DATA = bytes(range(48))

every_provider = pytest.mark.parametrize("case", [*FILES, *SERVICES], indirect=True)
every_service = pytest.mark.parametrize("case", SERVICES, indirect=True)
Become = Callable[[Mapping[str, str]], None]


def test_every_provider_is_tried() -> None:
    assert {*FILES, *SERVICES} - {"azure-managed-hsm"} == set(PROVIDERS)


@every_service
def test_a_client_is_made_without_asking_the_service(
    case: ServiceCase, become: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be made in an event loop, and again by each copy, pickle and fork."""
    become(case.down)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    client = pickle.loads(pickle.dumps(Checkpointer(tmp_path, encryption=case.text))).copy()
    with pytest.raises(DependencyError):
        client.begin().commit()


# ---- keys ------------------------------------------------------------------------------------------------------------


@every_provider
def test_what_is_wrapped_is_opened_again(case: Case, provider: KeyProvider) -> None:
    assert isinstance(provider, KeyProvider)
    wrapped = provider.wrap(DATA)
    assert DATA[:16] not in wrapped
    again = parse_provider(case.text)
    assert (again, again.key, again.provider) == (provider, provider.key, case.text.partition(":")[0])
    assert again.unwrap(wrapped) == DATA


@every_provider
def test_another_key_does_not_open_it(case: Case, provider: KeyProvider) -> None:
    with pytest.raises(UnwrapError):
        parse_provider(case.other).unwrap(provider.wrap(DATA))


@every_provider
def test_every_change_is_noticed(provider: KeyProvider) -> None:
    wrapped = provider.wrap(DATA)
    changed = [wrapped[:at] + bytes([wrapped[at] ^ 1]) + wrapped[at + 1 :] for at in (0, 1, 7, 40, len(wrapped) - 2)]
    if isinstance(provider.key, str) and provider.provider == "passphrase-file":
        changed = changed[3:]  # The first bytes are the cost of scrypt: other ones take long, or all memory.
    for damaged in (*changed, wrapped[:-4], wrapped[: len(wrapped) // 2], b"", b"x" * len(wrapped)):
        try:
            opened = provider.unwrap(damaged)
        except (UnwrapError, CheckpointError):
            continue
        pytest.fail(f"{damaged!r} was opened: {opened!r}")


@every_service
def test_a_rotation_inside_the_service_changes_nothing(case: ServiceCase, provider: KeyProvider) -> None:
    name, old = provider.key, provider.wrap(DATA)
    case.rotate()
    new = provider.wrap(DATA)
    assert provider.key == name
    assert [provider.unwrap(old), provider.unwrap(new)] == [DATA, DATA]


# ---- errors ----------------------------------------------------------------------------------------------------------


def failures(case: Case, wrapped: bytes) -> list[Exception]:
    """Return how wrapping and unwrapping fail, which must show no more than what the text names."""
    provider, met = parse_provider(case.text), []
    for use in (lambda: provider.wrap(DATA), lambda: provider.unwrap(wrapped), lambda: provider.key):
        try:
            use()
        except CheckpointError as error:
            met.append(error)
    for error in met:
        assert str(error).startswith(f"{case.text}: "), "the object"
        assert ": " in str(error).removeprefix(f"{case.text}: "), "the next step"
        assert "said by" not in str(error), "what the service says is not repeated"
        assert not any(secret in str(error) for secret in case.secrets)
        assert (error.__cause__, error.__suppress_context__) == (None, True), "no traceback of a package"
    return met


@every_service
def test_a_service_that_does_not_answer_can_be_asked_again(
    case: ServiceCase, provider: KeyProvider, become: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    wrapped = provider.wrap(DATA)
    become(case.down)
    met = failures(case, wrapped)
    assert len(met) >= 2
    assert all(isinstance(error, DependencyError) and error.retryable for error in met)


@every_service
def test_a_missing_permission_is_named(case: ServiceCase, provider: KeyProvider, become: Become) -> None:
    wrapped = provider.wrap(DATA)
    become(case.stranger)
    met = failures(case, wrapped)
    assert len(met) >= 2
    assert all(isinstance(error, StoreRefusedError) and "permission denied" in str(error) for error in met)


@every_service
def test_without_credentials_it_is_said_how_to_give_them(
    case: ServiceCase, provider: KeyProvider, become: Become
) -> None:
    wrapped = provider.wrap(DATA)
    become(case.nobody)
    met = failures(case, wrapped)
    assert len(met) >= 2
    assert all(isinstance(error, StoreRefusedError) and "credentials" in str(error) for error in met)


@every_service
def test_a_key_that_is_not_there_is_named(case: ServiceCase) -> None:
    missing = parse_provider(case.missing)
    with pytest.raises(CheckpointError, match=f"{case.missing}: (there is no such key|permission denied)"):
        missing.wrap(DATA)


@every_provider
def test_nothing_of_a_secret_is_shown_or_pickled(case: Case, provider: KeyProvider) -> None:
    for shown in (repr(provider), str(provider), provider.key, repr(pickle.dumps(provider))):
        assert not any(secret in shown for secret in case.secrets)


# ---- roots -----------------------------------------------------------------------------------------------------------


@every_provider
def test_a_root_is_created_restored_and_given_another_key(
    case: Case, case_of: Callable[[str], Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, file = str(tmp_path / "root"), case_of("key-file").text
    with Checkpointer(root, encryption=file).begin() as cp:
        cp.save("totals", KeyedState({"alice": 41}))
    Checkpointer(root, encryption=file).rekey(case.other)
    Checkpointer(root, encryption=case.other).rekey(case.text)
    assert total(root, case.text) == {"alice": 41}
    with Checkpointer(root, encryption=case.text).begin() as cp:
        cp.save("totals", KeyedState({"alice": 42}))
    for old in {file, case.other} - {case.text}:
        with pytest.raises(InvalidStateError, match=r"does not open the keys|its keys are opened by"):
            total(root, old)
    run("cat", root, "totals", "--encryption", case.text)
    assert "42" in capsys.readouterr().out
    for objects in (True, False):  # the second time all is done
        assert bool(Checkpointer(root, encryption=case.text).reencrypt(case.other).objects) == objects
        assert total(root, case.other) == {"alice": 42}
    ShardLeases(tmp_path / "leases", "app", "worker-1", encryption=case.text).create(["shard"])
    assert all(secret not in (tmp_path / "root" / "_keys").read_text() for secret in case.secrets)


@every_provider
def test_a_key_of_each_provider_is_allowed_to_clean_and_is_removed(case: Case, tmp_path: Path) -> None:
    root, owner = str(tmp_path / "root"), tmp_path / "owner.key"
    owner.write_text(secrets.token_hex(32))
    with Checkpointer(root, encryption=f"key-file:{owner}") as client:
        with client.begin() as cp:
            cp.save("totals", KeyedState({"alice": 41}))
        [_, made] = client.change_cleaners(allow=[case.text])
    assert (made.opens, made.provider) == ("structure", case.text.partition(":")[0])
    assert Checkpointer(root, encryption=case.text).verify().unread
    with pytest.raises(InvalidStateError, match="that of a cleaner"):
        total(root, case.text)
    with pytest.raises(InvalidStateError, match="that of a cleaner"):
        Checkpointer(root, encryption=case.text).rekey(case.other)
    with Checkpointer(root, encryption=f"key-file:{owner}") as client:
        assert len(client.change_cleaners(remove=[made.key or made.provider])) == 1
    with pytest.raises(InvalidStateError, match="its keys are opened by"):
        Checkpointer(root, encryption=case.text).verify()


@every_service
def test_a_cleaner_whose_service_fails_is_not_allowed(case: ServiceCase, tmp_path: Path, become: Become) -> None:
    root, owner = tmp_path / "root", tmp_path / "owner.key"
    owner.write_text(secrets.token_hex(32))
    with Checkpointer(root, encryption=f"key-file:{owner}") as client, client.begin() as cp:
        cp.save("totals", KeyedState({"alice": 41}))
    before = (root / "_keys").read_bytes()
    for identity in (case.stranger, case.nobody):
        become(identity)
        with pytest.raises(CheckpointError, match=r"permission denied|credentials"):
            Checkpointer(root, encryption=f"key-file:{owner}").change_cleaners(allow=[case.text])
        assert (root / "_keys").read_bytes() == before
    assert total(str(root), f"key-file:{owner}") == {"alice": 41}


def total(root: str, encryption: str) -> dict[Any, Any]:
    restored = Checkpointer(root, encryption=encryption).restore()
    assert restored is not None
    return restored.keyed("totals").to_dict()


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        checkpointer.main(list(arguments))


# ---- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "aws-kms:",
        "aws-kms:orders secret",
        "aws-kms:arn:aws:s3:::secret",
        "azure-key-vault:https://jobs.vault.azure.net.secret.example/keys/orders",
        "azure-key-vault:https://user:secret@jobs.vault.azure.net/keys/orders",
        "azure-key-vault:http://jobs.vault.azure.net/keys/secret",
        "azure-key-vault:https://jobs.vault.azure.net/keys/orders/secret",
        "google-kms:projects/secret",
        f"google-kms:projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/{'secret'}",
        "vault:secret",
        "vault:transit/../sys/secret",
        "vault:transit/orders?secret",
        "vault:transit/orders\nsecret",
    ],
)
def test_another_text_is_refused_with_the_form_and_not_repeated(text: str) -> None:
    kind = text.partition(":")[0]
    with pytest.raises(IllegalArgumentError, match=f"encryption: expected {kind}:.*, got a text of") as met:
        parse_provider(text)
    assert "secret" not in str(met.value)


def test_the_help_names_all_of_them() -> None:
    [option] = [one for one in checkpointer.commands["list"].params if one.name == "encryption"]
    assert all(f"{kind}:" in str(option.help) for kind in PROVIDERS)


@pytest.mark.parametrize(
    ("kind", "package"),
    [("aws-kms", "botocore"), ("azure-key-vault", "azure.identity"), ("google-kms", "google.auth")],
)
def test_a_missing_package_is_named_with_its_extra(
    kind: str, package: str, case_of: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = case_of(kind).text
    monkeypatch.setattr(
        "pyspark_checkpointer.storage.connection.is_installed", lambda name: name not in (package, "cryptography")
    )
    with pytest.raises(IllegalArgumentError, match=rf"needs the package {package}: pip install '.*\[{kind}\]'"):
        parse_provider(text)
