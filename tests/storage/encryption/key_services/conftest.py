"""The key services, which start once, and the environment of who asks them."""

import os
import pickle
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider
from pyspark_checkpointer.storage.encryption.key_registry import parse_provider
from tests.storage.encryption.key_services.case import Case
from tests.storage.encryption.key_services.fake_azure import HSM, VAULT, FakeAzure
from tests.storage.encryption.key_services.fake_google import HOST, FakeGoogle
from tests.storage.encryption.key_services.fake_vault import FakeVault
from tests.storage.encryption.key_services.server import Answer, Request, Server

if TYPE_CHECKING:
    from tests.storage.encryption.key_services.moto_kms import MotoKms

FILES = ("key-file", "passphrase-file")
SERVICES = ("aws-kms", "azure-key-vault", "azure-managed-hsm", "google-kms", "vault")


class Services:
    """All key services that are fakes."""

    def __init__(self, folder: Path) -> None:
        self.google, self.azure, self.vault = FakeGoogle(folder), FakeAzure(), FakeVault()
        hosts = {"": self._here, HOST: self.google, VAULT: self.azure.at(VAULT), HSM: self.azure.at(HSM)}
        self.server = Server(folder, hosts)

    def _here(self, request: Request) -> Answer:
        for path, service in (("/google/token", self.google.give_token), ("/azure/identity", self.azure.give_token)):
            if request.path.startswith(path):
                return service(request)
        return self.vault(request)


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    made = Services(tmp_path_factory.mktemp("key-services"))
    yield made
    made.server.stop()


@pytest.fixture(scope="session")
def kms_server() -> Iterator["MotoKms"]:
    """AWS KMS as moto has it."""
    from tests.storage.encryption.key_services.moto_kms import MotoKms

    made = MotoKms()
    yield made
    made.stop()


@pytest.fixture
def case_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Case]:
    """Return a function that gives the case of a kind of provider."""

    def give(kind: str) -> Case:
        if kind in FILES:
            texts, kept = [], []
            for name in ("orders", "other"):
                kept.append(secrets.token_hex(32))
                (tmp_path / name).write_text(kept[-1])
                texts.append(f"{kind}:{tmp_path / name}")
            return Case(*texts, secrets=tuple(kept))
        if kind == "aws-kms":
            found: Case = request.getfixturevalue("kms_server").case()
            return found
        services: Services = request.getfixturevalue("services")
        return {
            "azure-key-vault": lambda: services.azure.case(services.server, VAULT),
            "azure-managed-hsm": lambda: services.azure.case(services.server, HSM),
            "google-kms": lambda: services.google.case(services.server),
            "vault": lambda: services.vault.case(services.server),
        }[kind]()

    return give


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """Return a function that makes this process somebody with an environment."""

    def become(environment: Mapping[str, str]) -> None:
        for name in os.environ:
            if name.startswith(("AWS_", "AZURE_", "VAULT_", "GOOGLE_")) or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        if environment.get("GOOGLE_APPLICATION_CREDENTIALS") == "":
            monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")

    return become


@pytest.fixture
def case(
    request: pytest.FixtureRequest, case_of: Callable[[str], Case], become: Callable[[Mapping[str, str]], None]
) -> Case:
    """Return the case of the kind that the test is parametrised with. This process may use its keys."""
    found = case_of(request.param)
    become(found.environment)
    return found


@pytest.fixture
def provider(case: Case) -> KeyProvider:
    found: KeyProvider = pickle.loads(pickle.dumps(parse_provider(case.text)))
    return found
