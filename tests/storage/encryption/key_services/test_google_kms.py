"""What is special about keys of Google Cloud KMS."""

from collections.abc import Callable, Mapping

import pytest

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider, UnwrapError
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from pyspark_checkpointer.storage.encryption.key_services.google_kms import crc32c
from tests.storage.encryption.key_services.conftest import Services

DATA = bytes(range(48))


@pytest.fixture
def google(services: Services, become: Callable[[Mapping[str, str]], None]) -> KeyProvider:
    case = services.google.case(services.server)
    become(case.environment)
    return parse_provider(case.text)


def test_the_checksum_is_that_of_the_rfc() -> None:
    """The examples of RFC 3720, B.4."""
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


@pytest.mark.parametrize("bound", [b"", b"secrets"])
def test_what_was_encrypted_for_another_purpose_is_not_opened(
    bound: bytes, services: Services, google: KeyProvider
) -> None:
    made = services.google._encrypt(google.key, DATA, bound)
    with pytest.raises(UnwrapError):
        google.unwrap(made)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("ciphertext", "changed on its way"),
        ("verifiedPlaintextCrc32c", "did not compare the checksums"),
        ("verifiedAdditionalAuthenticatedDataCrc32c", "did not compare the checksums"),
    ],
)
def test_a_fault_on_the_way_is_noticed_before_the_key_is_used(
    field: str, said: str, services: Services, google: KeyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services.google, "faulty", field)
    with pytest.raises(DependencyError, match=said):
        google.wrap(DATA)


def test_a_key_that_was_damaged_on_its_way_back_is_not_used(
    services: Services, google: KeyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = google.wrap(DATA)
    monkeypatch.setattr(services.google, "faulty", "plaintext")
    with pytest.raises(DependencyError, match="changed on its way"):
        google.unwrap(wrapped)


def test_a_version_that_is_disabled_is_no_wrong_key(
    services: Services, google: KeyProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = google.wrap(DATA)
    monkeypatch.setattr(services.google, "disabled", True)
    with pytest.raises(StoreRefusedError, match=r"FAILED_PRECONDITION.*: enable its version"):
        google.unwrap(wrapped)
