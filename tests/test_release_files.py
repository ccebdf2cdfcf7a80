"""Two builds are the same bytes, or what differs is named; the bill of materials says what a wheel brings."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.programs import load_script
from tests.release_repository import HOOK, PYPROJECT, commit, git, make_key, make_repository

ROOT = Path(__file__).parents[1]

archives = load_script("archives.py")
dist = load_script("dist")
sbom = load_script("sbom.py")

NAMES = ["a.py", "b.py"]


def make_zip(path: Path, *, names: list[str] = NAMES, mode: int = 0o644, year: int = 2030, level: int = 9) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for name in names:
            info = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
            info.external_attr = mode << 16
            archive.writestr(info, f"# {name}\n" * 100, zipfile.ZIP_DEFLATED, level)
    return path


def make_tar(path: Path, *, names: list[str] = NAMES, mode: int = 0o644, owner: str = "", text: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.mode, info.uname = mode, owner
            info.size = len(name + text)
            archive.addfile(info, io.BytesIO((name + text).encode()))
    return path


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({"mode": 0o600}, [f"mode of {name} is 0o644 in the first build and 0o600 in the second" for name in NAMES]),
        ({"names": ["a.py"]}, ["b.py is in the first build alone"]),
        ({"names": [*NAMES, "c.py"]}, ["c.py is in the second build alone"]),
        ({"names": ["b.py", "a.py"]}, ["member 1 is a.py in the first build and b.py in the second"]),
        (
            {"names": ["a.py"], "year": 2031},
            [
                "time of a.py is (2030, 1, 1, 0, 0, 0) in the first build and (2031, 1, 1, 0, 0, 0) in the second",
                "b.py is in the first build alone",
            ],
        ),
        ({"level": 1}, ["the members are the same, and the bytes around them differ"]),
        ({}, []),
    ],
)
def test_what_differs_in_a_wheel_is_named(tmp_path: Path, change: dict[str, Any], lines: list[str]) -> None:
    found = archives.compare_archives(make_zip(tmp_path / "1.whl"), make_zip(tmp_path / "2.whl", **change))
    assert len(found) == len(lines)
    assert all(one.startswith(line) for one, line in zip(found, lines, strict=True)), found


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"mode": 0o600}, "mode of a.py is 0o644 in the first build and 0o600 in the second"),
        ({"owner": "me"}, "owner of a.py is (0, 0, '', '') in the first build and (0, 0, 'me', '') in the second"),
        ({"text": "x"}, "content of a.py is "),
    ],
)
def test_what_differs_in_an_sdist_is_named(tmp_path: Path, change: dict[str, Any], line: str) -> None:
    found = archives.compare_archives(make_tar(tmp_path / "1.tar.gz"), make_tar(tmp_path / "2.tar.gz", **change))
    assert found[0].startswith(line)
    assert len(found) == 2


def test_a_file_that_one_build_did_not_make_is_named(tmp_path: Path) -> None:
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
    make_zip(tmp_path / "1" / "one.whl")
    assert archives.compare_folders(tmp_path / "1", tmp_path / "2") == ["one.whl: only one of the builds made it"]


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    repository = make_repository(tmp_path, make_key(tmp_path, "releaser"))
    made = dist.build_twice(Path(sys.executable), repository, git(repository, "rev-parse", "HEAD"), tmp_path / "builds")
    assert sorted(path.name for path in made.iterdir()) == ["small-1.2.0-py3-none-any.whl", "small-1.2.0.tar.gz"]
    assert len(dist.write_sums(made).splitlines()) == 2
    subprocess.run(["sha256sum", "--check", "--strict", dist.SUMS], cwd=made, check=True)


def test_what_differs_between_two_builds_is_named(tmp_path: Path) -> None:
    """The builder is told to keep times and modes, and a hook puts the time zone into a file."""
    repository = make_repository(tmp_path, make_key(tmp_path, "releaser"))
    hooked = f"{PYPROJECT}\n[tool.hatch.build]\nreproducible = false\n[tool.hatch.build.hooks.custom]\n"
    commit(repository, {"pyproject.toml": hooked, "hatch_build.py": HOOK})
    with pytest.raises(dist.DistError) as error:
        dist.build_twice(Path(sys.executable), repository, git(repository, "rev-parse", "HEAD"), tmp_path / "builds")
    for line in (
        "small-1.2.0.tar.gz: time of small-1.2.0/small/one.py is 1500000000.0 in the first build and 1600000000.0 in",
        "small-1.2.0.tar.gz: mode of small-1.2.0/small/one.py is 0o644 in the first build and 0o600 in the second",
        "small-1.2.0.tar.gz: mode of small-1.2.0/small/zone.txt is 0o644 in the first build and 0o600 in the second",
        "small-1.2.0-py3-none-any.whl: mode of small/one.py is 0o100644 in the first build and 0o100600 in the second",
        "small-1.2.0-py3-none-any.whl: content of small/zone.txt is ",
    ):
        assert line in str(error.value)


def test_what_builds_is_pinned_with_digests_within_its_bounds() -> None:
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["build"]
    lines = [line for line in dist.TOOLS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pinned = dict(line.partition(" --hash=sha256:")[0].split("==") for line in lines)
    assert all(len(line.partition(" --hash=sha256:")[2]) == 64 for line in lines)
    for bound in map(Requirement, bounds):
        assert pinned[bound.name] in bound.specifier, f"run scripts/pin-build-tools: {bound}"


def package(name: str, *requires: str, **more: Any) -> dict[str, Any]:
    """Return what pip's report says of a package, as far as it is read."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    metadata = {"name": name, "version": "1.0", "requires_dist": list(requires), "license_expression": "MIT"}
    found = {"url": f"https://example.org/{name}.whl", "archive_info": {"hashes": {"sha256": digest}}}
    return {"is_direct": False, "metadata": metadata, "download_info": found} | more


REPORT = {
    "pip_version": "26.0",
    "environment": {
        "implementation_name": "cpython",
        "python_version": "3.11",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    },
    "install": [
        package(
            "small",
            "Base",
            "cloud; extra == 's3'",
            "cloud; extra == 'gcs'",
            is_direct=True,
            requested_extras=["s3", "gcs"],
        ),
        package("base"),
        package("cloud", "base", "wire_protocol", "never; python_version < '3'"),
        package("wire.protocol"),
    ],
}


def test_the_bill_names_all_that_base_and_extras_bring(tmp_path: Path) -> None:
    wheel = make_zip(tmp_path / "small.whl")
    text = sbom.describe(REPORT, wheel, 1_900_000_000)
    assert sbom.describe(REPORT | {"install": REPORT["install"][::-1]}, wheel, 1_900_000_000) == text
    bill = json.loads(text)
    assert bill["metadata"]["timestamp"] == "2030-03-17T17:46:40+00:00"
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = {one["name"]: one for one in bill["components"]}
    assert {name: one["scope"] for name, one in found.items()} == {
        "base": "required",
        "cloud": "optional",
        "wire-protocol": "optional",
    }
    assert [one["value"] for one in found["cloud"]["properties"]] == ["gcs", "s3"]
    assert found["base"]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"base").hexdigest()}]
    assert found["cloud"]["purl"] == "pkg:pypi/cloud@1.0"
    needs = {one["ref"]: one.get("dependsOn") for one in bill["dependencies"]}
    assert needs["pkg:pypi/small@1.0"] == ["pkg:pypi/base@1.0", "pkg:pypi/cloud@1.0"]
    assert needs["pkg:pypi/cloud@1.0"] == ["pkg:pypi/base@1.0", "pkg:pypi/wire-protocol@1.0"]


def test_another_wheel_has_another_serial_number(tmp_path: Path) -> None:
    texts = [sbom.describe(REPORT, make_zip(tmp_path / "small.whl", mode=mode), 0) for mode in (0o644, 0o600)]
    assert len({json.loads(text)["serialNumber"] for text in texts}) == 2


def test_a_package_that_users_do_not_get_is_refused(tmp_path: Path) -> None:
    own = package("base")
    own["download_info"]["url"] = "file:///wheels/base.whl"
    report = REPORT | {"install": [package("small", "base", is_direct=True, requested_extras=[]), own]}
    with pytest.raises(ValueError, match="base: found in a folder and not in the index"):
        sbom.describe(report, make_zip(tmp_path / "small.whl"), 0)
