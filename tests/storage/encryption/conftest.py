"""Passphrases that cost little: scrypt makes an attacker pay, and tests would pay it again and again."""

import pytest

from pyspark_checkpointer.storage.encryption import key_providers


@pytest.fixture(autouse=True)
def _cheap_passphrases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("full_cost") is None:
        monkeypatch.setattr(key_providers, "_SCRYPT", (1 << 10, 8, 1))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full_cost: new passphrases cost as much as outside of tests")
