"""What is special about keys of Vault."""

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider, UnwrapError
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from tests.storage.encryption.key_services.conftest import Services
from tests.storage.encryption.key_services.server import Answer, Request, Server

DATA = bytes(range(48))
TEXT = "vault:transit/orders"
Become = Callable[[Mapping[str, str]], None]


@pytest.fixture
def vault(services: Services, become: Become) -> KeyProvider:
    become(services.vault.case(services.server).environment)
    return parse_provider(TEXT)


def test_what_was_encrypted_for_another_purpose_is_not_opened(services: Services, vault: KeyProvider) -> None:
    body = b'{"plaintext": "AAAA"}'
    headers = {"X-Vault-Token": services.vault.token, "Content-Type": "application/json"}
    made = services.vault(Request("POST", "/v1/transit/encrypt/orders", headers, body))  # type: ignore[arg-type]
    assert made.status == 200
    with pytest.raises(UnwrapError):
        vault.unwrap(made.body["data"]["ciphertext"].encode())  # type: ignore[call-overload]


def test_a_version_that_may_no_longer_decrypt_is_named(
    services: Services, vault: KeyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = vault.wrap(DATA)
    monkeypatch.setattr(services.vault, "least", 100)
    with pytest.raises(StoreRefusedError, match=rf"{TEXT}: .*too old.*lower its min_decryption_version"):
        vault.unwrap(wrapped)


def test_the_token_of_a_login_is_taken(
    services: Services, vault: KeyProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".vault-token").write_text(f"{services.vault.token}\n")
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert vault.unwrap(vault.wrap(DATA)) == DATA


@pytest.mark.parametrize("token", ["secret\nX-Evil: 1", "secret\u2028"])
def test_a_token_that_cannot_be_sent_is_not_shown(
    token: str, vault: KeyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", f"{token}x")
    with pytest.raises(StoreRefusedError, match="VAULT_TOKEN") as met:
        vault.wrap(DATA)
    assert "secret" not in str(met.value)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "secret", "http://[secret"])
def test_an_address_that_is_none_is_not_shown(
    address: str, vault: KeyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_ADDR", address)
    with pytest.raises(StoreRefusedError, match="set VAULT_ADDR") as met:
        vault.wrap(DATA)
    assert "secret" not in str(met.value)


def test_a_namespace_and_a_certificate_are_taken_from_the_environment(
    services: Services, vault: KeyProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        asked.append(request)
        return services.vault(request)

    server = Server(tmp_path, {"vault.example": answer})
    monkeypatch.setenv("https_proxy", server.url)
    monkeypatch.setenv("VAULT_ADDR", "https://vault.example/")
    monkeypatch.setenv("VAULT_NAMESPACE", "team")
    with pytest.raises(DependencyError, match="SSLCertVerificationError"):
        vault.wrap(DATA)
    monkeypatch.setenv("VAULT_CACERT", str(server.authority))
    assert vault.unwrap(vault.wrap(DATA)) == DATA
    assert {one.headers["X-Vault-Namespace"] for one in asked} == {"team"}
    monkeypatch.setenv("VAULT_CACERT", str(tmp_path / "nothing"))
    with pytest.raises(StoreRefusedError, match="VAULT_CACERT or VAULT_CAPATH cannot be read"):
        vault.wrap(DATA)
    server.stop()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(302, {}, {"Location": "http://127.0.0.1:1/v1/transit/encrypt/orders"}), "redirects are not followed"),
        (Answer(307, {}, {"Location": "http://127.0.0.1:1/v1/transit/encrypt/orders"}), "redirects are not followed"),
        (Answer(503, {"errors": ["Vault is sealed"]}), "HTTP 503"),
        (Answer(429, {"errors": []}), "asks for fewer requests"),
        (Answer(200, b"<html>"), "no JSON object"),
        (Answer(200, b"[" * 100_000), "no JSON object"),
        (Answer(200, {"data": {"ciphertext": None}}), "lacks the key"),
    ],
)
def test_an_answer_that_is_none_can_be_asked_for_again(
    answer: Answer, said: str, vault: KeyProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def give(request: Request) -> Answer:
        asked.append(request)
        return answer

    monkeypatch.setattr("time.sleep", lambda _: None)
    server = Server(tmp_path, {"": give})
    monkeypatch.setenv("VAULT_ADDR", server.url)
    with pytest.raises(Exception, match=f"{TEXT}: .*{said}") as met:
        vault.wrap(DATA)
    assert getattr(met.value, "retryable", False)
    assert len(asked) == (1 if said == "lacks the key" else 3)
    server.stop()


def test_no_answer_shows_a_secret(vault: KeyProvider, services: Services) -> None:
    assert secrets.compare_digest(repr(vault), "Vault(name='transit/orders')")
    assert services.vault.token not in repr(vault)
