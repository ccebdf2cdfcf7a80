"""What is special about keys of Azure Key Vault."""

from collections.abc import Callable, Mapping

import pytest

from pyspark_checkpointer.errors import IllegalArgumentError, StoreRefusedError
from pyspark_checkpointer.storage.encryption.key_providers import UnwrapError
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from tests.storage.encryption.key_services.conftest import Services
from tests.storage.encryption.key_services.fake_azure import HSM, VAULT

DATA = bytes(range(48))


@pytest.fixture(autouse=True)
def _worker(services: Services, become: Callable[[Mapping[str, str]], None]) -> None:
    become(services.azure.case(services.server, VAULT).environment)


def test_a_key_wraps_by_the_algorithm_of_its_type() -> None:
    wrapped = {
        host: parse_provider(f"azure-key-vault:https://{host}/keys/orders").wrap(DATA).partition(b"\n")
        for host in (VAULT, HSM)
    }
    assert {host: found[0].partition(b" ")[2] for host, found in wrapped.items()} == {
        VAULT: b"RSA-OAEP-256",
        HSM: b"A256KW",
    }
    assert {host: len(found[2]) for host, found in wrapped.items()} == {VAULT: 256, HSM: 56}


def test_a_key_that_only_signs_is_refused() -> None:
    with pytest.raises(StoreRefusedError, match="choose an RSA key, or an AES key of a Managed HSM"):
        parse_provider(f"azure-key-vault:https://{VAULT}/keys/curve").wrap(DATA)


def test_another_algorithm_than_that_of_the_key_opens_nothing() -> None:
    provider = parse_provider(f"azure-key-vault:https://{VAULT}/keys/orders")
    wrapped = provider.wrap(DATA)
    for changed in (wrapped.replace(b"RSA-OAEP-256", b"A256KW"), wrapped.replace(b"RSA-OAEP-256", b"RSA1_5")):
        with pytest.raises(UnwrapError):
            provider.unwrap(changed)


def test_a_key_that_was_deleted_is_named(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = parse_provider(f"azure-key-vault:https://{VAULT}/keys/orders")
    wrapped = provider.wrap(DATA)
    monkeypatch.delitem(services.azure.keys, (VAULT, "orders"))
    with pytest.raises(IllegalArgumentError, match="there is no such key"):
        provider.unwrap(wrapped)
