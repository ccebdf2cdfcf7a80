"""What a program is told that cannot run here: another Python, a missing package, and errors by their name."""

import ast
import json
import pickle
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import pyspark_checkpointer
from pyspark_checkpointer import Checkpointer, errors
from tests.test_layers import FILES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(name == package or name.startswith(package + ".") for package in {packages!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{statement}
"""

EXTRAS = {
    "s3": ("s3fs", "botocore", "aiobotocore"),
    "azure": ("adlfs", "azure.storage", "azure.core"),
    "gcs": ("gcsfs", "google.auth", "google.oauth2"),
    "databricks": ("aiohttp",),
    "encryption": ("cryptography",),
    "aws-kms": ("botocore",),
    "azure-key-vault": ("azure.identity",),
    "google-kms": ("google.auth",),
    "eventhub": ("azure.eventhub",),
    "otel": ("opentelemetry",),
    "journal": ("yaml",),
    "report": ("jinja2",),
    "spark": ("pyspark", "py4j", "pyarrow", "numpy", "pandas"),
}
"""What each extra brings, by the names that are imported."""

IMPORT_ALL = """
import importlib, json

failed = {{}}
for module in {modules!r}:
    try:
        importlib.import_module(module)
    except ImportError as error:
        failed[module] = str(error)
print(json.dumps(failed))
"""

TESTING = "pyspark_checkpointer.testing"
"""What only tests import. `testing.plugin` is loaded by pytest itself."""

MODULES = sorted(name for name in FILES if not name.startswith(TESTING) and not name.endswith("__main__"))


def refused_imports(packages: tuple[str, ...]) -> dict[str, str]:
    """Return what is said of each module that cannot be imported without some packages."""
    program = WITHOUT.format(packages=packages, statement=IMPORT_ALL.format(modules=MODULES))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    refused: dict[str, str] = json.loads(done.stdout)
    return refused


def last_line(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("package", "statement", "said"),
    [
        (
            "pyspark",
            "import pyspark_checkpointer.spark",
            "pyspark_checkpointer.spark needs PySpark 3.5 or newer and pyarrow, and pyspark is missing",
        ),
        (
            "pyarrow",
            "import pyspark_checkpointer.spark",
            "pyspark_checkpointer.spark needs PySpark 3.5 or newer and pyarrow, and pyarrow is missing",
        ),
        ("numpy", "import pyspark_checkpointer.table.opening", "tables need pyarrow and numpy, and numpy is missing"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(package: str, statement: str, said: str) -> None:
    line = last_line(WITHOUT.format(packages=(package,), statement=statement))
    assert said in line
    assert "pip install 'spark-state-checkpointer[spark]'" in line


def test_every_extra_is_tried() -> None:
    assert EXTRAS.keys() == PROJECT["optional-dependencies"].keys()


NEEDS = {
    "pyspark_checkpointer.spark": "spark",
    "pyspark_checkpointer.table": "spark",
    "pyspark_checkpointer.consumers.journal": "journal",
    "pyspark_checkpointer.storage.encryption": "encryption",
    "pyspark_checkpointer.admin.encrypt": "encryption",
    "pyspark_checkpointer.admin.encrypt_checks": "encryption",
    "pyspark_checkpointer.admin.encrypt_in_place": "encryption",
    "pyspark_checkpointer.storage.signatures": "encryption",
    "pyspark_checkpointer.admin.signers": "encryption",
    "pyspark_checkpointer.admin.sign_root": "encryption",
}
"""The parts of the package that cannot be imported without an extra."""


def missing_extra(module: str) -> str:
    """Return the extra that a module cannot be imported without."""
    return next(extra for part, extra in NEEDS.items() if f"{module}.".startswith(f"{part}."))


@pytest.mark.parametrize(
    "packages",
    [
        *((package,) for package in EXTRAS["spark"]),
        tuple(package for extra, packages in EXTRAS.items() for package in packages if extra != "spark"),
    ],
    ids=lambda packages: packages[0] if len(packages) == 1 else "all but those of Spark",
)
def test_a_module_is_imported_without_a_package_or_names_its_extra(packages: tuple[str, ...]) -> None:
    for module, said in refused_imports(packages).items():
        extra = missing_extra(module)
        assert f"pip install 'spark-state-checkpointer[{extra}]'" in said, module
        assert set(packages) & set(EXTRAS[extra]), module


def test_the_base_install_has_all_modules_but_those_that_need_an_extra() -> None:
    refused = refused_imports(tuple(package for packages in EXTRAS.values() for package in packages))
    for module, said in refused.items():
        assert f"pip install 'spark-state-checkpointer[{missing_extra(module)}]'" in said, module
    assert set(refused) == {name for name in MODULES if f"{name}.".startswith(tuple(f"{part}." for part in NEEDS))}


NOT_NEEDED = (
    "admin.checkpoint_sizes",
    "admin.diff",
    "admin.export",
    "admin.repair",
    "admin.repair_candidates",
    "admin.retention",
    "admin.streaming",
    "cli",
    "client._async",
    "client.html",
    "client.opentelemetry",
    "consumers",
    "spark",
    "storage.azure",
    "storage.local",
    "storage.s3",
    "table",
    "testing",
)
"""Parts of the package that a program which saves and restores does without until it calls them."""


def is_part_of(name: str, parts: tuple[str, ...]) -> bool:
    return any(f"{name}.".startswith(f"pyspark_checkpointer.{part}.") for part in parts)


def test_the_import_brings_only_what_saves_and_restores() -> None:
    program = "import sys, pyspark_checkpointer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = set(done.stdout.split()) & FILES.keys()
    assert [name for name in ours if is_part_of(name, NOT_NEEDED)] == []
    assert all(any(is_part_of(name, (part,)) for name in FILES) for part in NOT_NEEDED)
    assert len(ours) <= 100, sorted(ours)  # it was 107 when nothing was left out


def test_the_package_has_the_version_of_the_project() -> None:
    """It stands in the code too, since a zip file has no metadata."""
    assert pyspark_checkpointer.__version__ == PROJECT["version"]


@pytest.mark.parametrize("name", pyspark_checkpointer.__all__)
def test_every_public_name_is_there_once_it_is_asked_for(name: str) -> None:
    program = f"import pyspark_checkpointer as p; print('{name}' in dir(p), p.{name}.__name__); p.no_such_name"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", name if name != "errors" else "pyspark_checkpointer.errors"]
    assert done.stderr.endswith("AttributeError: module 'pyspark_checkpointer' has no attribute 'no_such_name'\n")


def test_another_python_is_refused_in_a_sentence_that_it_can_read() -> None:
    program = "import sys; sys.version_info = (3, 10, 1, 'final', 0); import pyspark_checkpointer.spark"
    assert last_line(program) == "ImportError: pyspark_checkpointer needs Python 3.11 or newer, this is Python 3.10"
    source = (ROOT / "checkpointer" / "__init__.py").read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    ours = [
        index
        for index, node in enumerate(tree.body)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyspark_checkpointer")
    ]
    check = next(index for index, node in enumerate(tree.body) if isinstance(node, ast.If))
    assert check < min(ours), "what is imported before the check may not parse"


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_goes_by_the_name_that_users_catch_it_by(name: str) -> None:
    kind = getattr(errors, name)
    assert kind.__module__ == "pyspark_checkpointer.errors"
    again = pickle.loads(pickle.dumps(kind("said")))
    assert (type(again), str(again)) == (kind, "said")


def test_a_traceback_ends_with_the_name_that_users_catch() -> None:
    program = "from pyspark_checkpointer import Checkpointer; Checkpointer('memory://x').restore(epoch='1')"
    assert last_line(program).startswith("pyspark_checkpointer.errors.IllegalArgumentError: epoch '1'")


def test_a_map_is_no_table_and_the_way_to_read_it_is_said(tmp_path: Path) -> None:
    from pyspark_checkpointer import KeyedState

    client = Checkpointer(tmp_path / "root")
    with client.begin() as cp:
        cp.save("visits", KeyedState({"a": 1}))
        cp.snapshot("blobs", 0, bytearray(b"x"))
    restored = client.restore()
    assert restored is not None
    with pytest.raises(errors.IllegalArgumentError, match=r"is a map, not a table: restored\.keyed\('visits'\)"):
        restored.table("visits")
    with pytest.raises(errors.IllegalArgumentError, match=r"is bytes, not a table: restored\.operator\('blobs'\)"):
        restored.table("blobs")


@pytest.mark.parametrize(
    ("folder", "package", "module", "name"),
    [
        ("checkpointer", "pyspark_checkpointer", "errors", "FencedError"),
        ("checkpointer", "pyspark_checkpointer", "storage.local.store", "LocalStore"),
        ("manifests", "pyspark_checkpointer.manifests", "model", "Manifest"),
    ],
)
def test_a_folder_of_the_checkout_is_no_second_copy(folder: str, package: str, module: str, name: str) -> None:
    program = f"""
from {folder}.{module} import {name}
from {package}.{module} import {name} as same
import {folder}, {package} as whole
assert {name} is same and {folder} is whole
print(whole.{module}.__name__, whole.{module}.__spec__.name)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == ([f"{package}.{module}"] * 2, "")


@pytest.mark.parametrize("through_sdist", [False, True])
def test_a_wheel_installs_one_package_that_nobody_else_has(tmp_path: Path, through_sdist: bool) -> None:
    source = ROOT
    if through_sdist:  # as installers build it of what was uploaded
        (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
        with tarfile.open(sdist) as packed:
            packed.extractall(tmp_path, filter="data")
        source = Path(sdist.removesuffix(".tar.gz"))
    (wheel,) = WheelBuilder(str(source)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len([name for name in names if name.endswith(".py")]) == len(FILES)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pyspark_checkpointer"}
    for module in ("manifests/model.py", "checkpoint/session.py", "py.typed"):
        assert f"pyspark_checkpointer/{module}" in names
