"""A small project in a repository of its own, ready to be released, with a signing key that only it knows."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "small"
version = "1.2.0"
requires-python = ">=3.11"

[tool.hatch.build.targets.wheel]
packages = ["small"]
"""

HOOK = """
import os
from pathlib import Path
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        Path(self.root, "small", "zone.txt").write_text(os.environ["TZ"])
"""
"""Puts the time zone into what it builds."""


def git(repository: Path, *arguments: str) -> str:
    """Return what git prints."""
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path, files: Mapping[str, str]) -> None:
    """Write files, by their paths, and commit them."""
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "Change it")


def make_key(folder: Path, name: str) -> Path:
    """Make a key of ssh without a passphrase, and return the path of its public half."""
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
    return key.with_suffix(".pub")


def configure(repository: Path, key: Path) -> None:
    """Sign tags with a key of ssh, and nothing else."""
    git(repository, "config", "commit.gpgSign", "false")
    git(repository, "config", "user.name", "Releaser")
    git(repository, "config", "user.email", "releaser@example.org")
    git(repository, "config", "gpg.format", "ssh")
    git(repository, "config", "user.signingKey", str(key))


def make_repository(folder: Path, key: Path) -> Path:
    """Make the repository."""
    repository = folder / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch", "main")
    configure(repository, key)
    files = {
        "pyproject.toml": PYPROJECT,
        "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (2030-01-01)\n\n* New.\n\n## 1.1.0\n",
        ".gitignore": "dist/\n",
        "small/one.py": "ONE = 1\n",
        "small/two.py": "TWO = 2\n",
        ".ci/allowed_signers": allow(key),
    }
    commit(repository, files)
    git(repository, "tag", "v1.1.0")
    commit(repository, {"small/two.py": "TWO = 2.0\n"})
    return repository


def allow(key: Path) -> str:
    """Return the line that lets a key sign."""
    return f'releaser@example.org namespaces="git" {key.read_text()}'
