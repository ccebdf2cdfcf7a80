"""A release is refused for each reason by name, and its tag is signed.

`make release` itself runs in `make prove`, since it takes a minute and the network.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import load_script
from tests.release_repository import PYPROJECT, allow, commit, configure, git, make_key, make_repository

ROOT = Path(__file__).parents[1]

dist = load_script("dist")
release = load_script("release")


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a new key, without the user's own configuration of git, which may name another."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return make_key(tmp_path, "releaser")


@pytest.fixture
def repository(tmp_path: Path, key: Path) -> Path:
    return make_repository(tmp_path, key)


def check(repository: Path) -> str:
    """Run all checks of a release that need no network."""
    release.check_tree(repository)
    version: str = release.check_version(repository)
    release.check_signing(repository)
    return version


def with_version(version: str) -> Callable[[Path], None]:
    def change(repository: Path) -> None:
        changelog = f"# Changelog\n\n## {version}\n"
        commit(repository, {"pyproject.toml": PYPROJECT.replace("1.2.0", version), "CHANGELOG.md": changelog})

    return change


def use_another_key(repository: Path) -> None:
    git(repository, "config", "user.signingKey", str(make_key(repository.parent, "stranger")))


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda at: (at / "new.txt").write_text(""), r"the tree is not clean.*\n.*new\.txt"),
    (lambda at: (at / "small" / "one.py").write_text(""), r"the tree is not clean.*\nM small/one\.py"),
    (
        lambda at: commit(at, {"CHANGELOG.md": "## Unreleased\n\n## 1.2.0\n"}),
        "begins with 'Unreleased'; expected '## 1.2.0'",
    ),
    (lambda at: commit(at, {"CHANGELOG.md": "## 1.2.0rc1\n"}), "begins with '1.2.0rc1'; expected '## 1.2.0'"),
    (lambda at: commit(at, {"CHANGELOG.md": "New\n"}), "begins with 'no heading'"),
    (with_version("1.02"), "has the version '1.02'"),
    (with_version("newest"), "has the version 'newest'"),
    (with_version("1.3.dev1"), "has the version '1.3.dev1'"),
    (lambda at: git(at, "tag", "v1.2.0"), "the tag v1.2.0 exists: raise the version"),
    (lambda at: git(at, "tag", "v1.10.0", "HEAD~"), r"the tag v1\.10\.0 is newer than 1\.2\.0"),
    (with_version("1.1.0rc1"), r"the tag v1\.1\.0 is newer than 1\.1\.0rc1"),
    (lambda at: git(at, "tag", "v1.1.1"), r"this commit has the tag v1\.1\.1"),
    (lambda at: git(at, "tag", "vast", "HEAD~"), "the tag vast names no version"),
    (lambda at: git(at, "config", "--unset", "user.signingKey"), "no signing key is configured; .* run: git config"),
    (lambda at: git(at, "config", "user.signingKey", "/nowhere.pub"), "git commit-tree failed: .*nowhere"),
    (use_another_key, r"add its line to \.ci/allowed_signers"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_it_is_refused_by_name(repository: Path, change: Callable[[Path], object], message: str) -> None:
    assert check(repository) == "1.2.0"
    change(repository)
    with pytest.raises(release.RefusedError, match=f"(?s){message}"):
        check(repository)


def test_a_shallow_clone_is_refused(repository: Path, tmp_path: Path) -> None:
    subprocess.run(
        ["git", "clone", "--quiet", "--depth", "1", f"file://{repository}", tmp_path / "shallow"], check=True
    )
    with pytest.raises(release.RefusedError, match="git fetch --unshallow --tags"):
        release.check_tree(tmp_path / "shallow")


def scripts(folder: Path, audit: int, made: int) -> Path:
    """Stand in for the audit and for `make dist`, with their exit statuses."""
    folder.mkdir()
    (folder / "audit").write_text(f"raise SystemExit({audit})")
    files = (
        "import pathlib; pathlib.Path('dist').mkdir(); pathlib.Path('dist/SHA256SUMS').write_text('aa  small.whl\\n')"
    )
    (folder / "dist").write_text(f"{files}; raise SystemExit({made})")
    return folder


@pytest.mark.parametrize(
    ("audit", "made", "said"),
    [
        (0, 0, "git push origin v1.2.0 && .venv/bin/twine upload dist/*.whl dist/*.tar.gz\n"),
        (75, 0, "Nobody answered the audit: run `make audit`"),
        (1, 0, "release: the audit failed"),
        (0, 1, "release: dist/ was not made"),
    ],
)
def test_the_tag_comes_last_and_names_the_files(
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    audit: int,
    made: int,
    said: str,
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setattr(release, "ROOT", repository)
    monkeypatch.setattr(release, "SCRIPTS", scripts(tmp_path / "scripts", audit, made))
    fails = audit == 1 or made == 1
    assert release.main() == fails
    assert said in "".join(capfd.readouterr())
    assert git(repository, "tag", "--list", "v1.2.0") == ("" if fails else "v1.2.0")
    if not fails:
        signers = f"gpg.ssh.allowedSignersFile={repository}/.ci/allowed_signers"
        git(repository, "-c", signers, "verify-tag", "v1.2.0")
        assert git(repository, "tag", "--list", "--format=%(contents:body)", "v1.2.0") == "aa  small.whl"


def test_a_tag_that_nobody_can_verify_is_taken_back(repository: Path) -> None:
    use_another_key(repository)
    with pytest.raises(release.RefusedError, match="verify-tag failed"):
        release.sign_tag(repository, "1.2.0", "aa  small.whl\n", release.git(repository, "rev-parse", "HEAD"))
    assert git(repository, "tag", "--list") == "v1.1.0"


PAGE = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_verify_a_release(repository: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    commands = f"set -e\n{blocks[0]}".replace("v0.1.0", "v1.2.0")
    assert commands.count("v1.2.0") == 2
    made = tmp_path / "made"
    made.mkdir()
    for name in ("small-1.2.0-py3-none-any.whl", "small-1.2.0.tar.gz"):
        (made / name).write_text(name)
    with pytest.raises(release.RefusedError, match="HEAD is another commit since"):
        release.sign_tag(repository, "1.2.0", "", "0" * 40)
    release.sign_tag(repository, "1.2.0", dist.write_sums(made), release.git(repository, "rev-parse", "HEAD"))

    def verify() -> int:
        return subprocess.run(["sh", "-c", commands], cwd=repository, check=False).returncode

    assert verify() != 0, "there is no file to verify"
    wheel = shutil.copy(made / "small-1.2.0-py3-none-any.whl", repository)
    assert verify() == 0
    with open(wheel, "a") as file:
        file.write("forged")
    assert verify() != 0
    shutil.copy(made / "small-1.2.0-py3-none-any.whl", repository)
    git(repository, "tag", "--force", "v1.2.0", "--message", git(repository, "tag", "--list", "--format=%(contents)"))
    assert verify() != 0, "the tag is not signed"


@pytest.mark.prove
def test_two_clean_clones_release_the_same_files(key: Path, tmp_path: Path) -> None:
    """It runs the script, and not `make`, which would install all of the development group twice."""
    first, second = tmp_path / "first", tmp_path / "second"
    git(ROOT, "clone", "--quiet", "--no-tags", str(ROOT), str(first))
    configure(first, key)
    version = tomllib.loads((first / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    commit(first, {"CHANGELOG.md": f"## {version}\n", ".ci/allowed_signers": allow(key)})
    git(ROOT, "clone", "--quiet", str(first), str(second))
    configure(second, key)
    for clone in (first, second):
        done = subprocess.run([sys.executable, clone / "scripts/release"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("&& .venv/bin/twine upload dist/*.whl dist/*.tar.gz\n")
    assert (first / "dist" / dist.SUMS).read_text() == (second / "dist" / dist.SUMS).read_text()
