"""Environments with other versions of PySpark, and of Python, than `.venv` has.

They lie beside the programs of `tests/servers.py`. PySpark is the same for every Python. So `pip` puts it, with its
py4j, into a folder of its own, and all other packages are those of the Python that has this folder on its PYTHONPATH.

How to add a line of PySpark, such as 4.4:

1. Add its newest version to `SUPPORTED` below. The extra `spark` in `pyproject.toml` has to allow it.
2. Add its source for Kafka to `SOURCES` in `tests/kafka.py`, if there is one on Maven.
3. Run `make matrix SPARKS=4.4.0`. Mend what differs in `checkpointer/spark/versions.py`. A test of what older lines
   lack takes its marker from `tests/spark/needs.py`.
4. Compare the offset and commit logs that it writes: `checkpointer/admin/streaming/offset_log.py` reads them,
   `checkpointer/admin/streaming/log_edit.py` writes them, and `make prove PROOFS=tests/spark/test_old_checkpoints.py`
   takes queries of all other lines back.
5. Say it in `docs/streaming.md` (what older lines lack, what was run), `docs/connect.md`, `docs/submitting.md` and
   `README.md`, with the counts that `make matrix` prints. `git grep '4[.]3'` finds the rest.

`make setup` takes the newest PySpark that `pyproject.toml` allows: CI runs on a new line once it is released.
"""

import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.servers import Program

PROJECT = Path(__file__).parents[1]

SUPPORTED = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The newest PySpark of each line that is supported, the oldest line first."""


def install_spark(version: str) -> Path:
    """Return the folder with this PySpark, which is fetched unless it is there. Raises: ServerUnavailableError."""
    program = Program(
        label=f"PySpark {version}",
        name="pyspark",
        version=version,
        installer=sys.executable,
        arguments=("-m", "pip", "install", "--no-compile", "--target", ".", f"pyspark=={version}"),
        executable="pyspark/jars",
    )
    program.install()
    return program.folder


def install_python(name: str) -> Path:
    """Return an interpreter with all that `make setup` installs, for a Python such as `python3.12`.

    It does not have this package itself: each checkout puts its own on the PYTHONPATH. The packages are compiled, since
    Spark Connect waits only ten seconds for a process that imports them. Raises: ServerUnavailableError.
    """
    pyproject = PROJECT / "pyproject.toml"
    asked = tomllib.loads(pyproject.read_text())
    wanted = repr(
        (asked["project"]["dependencies"], asked["project"]["optional-dependencies"], asked["dependency-groups"])
    )
    pip = "bin/python -m pip"
    steps = [
        f"{name} -m venv .",
        f"{pip} install --quiet 'pip>=25.1'",
        f"{pip} install '{PROJECT}' --group '{pyproject}:dev'",
        f"{pip} uninstall --yes {asked['project']['name']}",
    ]
    program = Program(
        label=f"Packages for {name}",
        name=name,
        version=hashlib.sha256(wanted.encode()).hexdigest()[:12],
        installer="sh",
        arguments=("-c", " && ".join(steps)),
        executable="bin/python",
    )
    program.install()
    return program.folder / program.executable


def environment(python: Path, spark: Path) -> dict[str, str]:
    """Return the environment of a process that runs this checkout on a PySpark, and so do the processes it starts."""
    java = subprocess.run([PROJECT / "scripts" / "java-home"], capture_output=True, text=True, check=True)
    return os.environ | {
        "JAVA_HOME": java.stdout.strip(),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join(map(str, (spark, PROJECT / "src", PROJECT))),
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }
