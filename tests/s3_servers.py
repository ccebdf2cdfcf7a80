"""More servers that speak the protocol of S3, and the table of docs/stores.md that says what each of them does.

`make conformance` installs them, runs the tests of conformance on them, and writes the table. CI has MinIO alone.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers import (
    MINIO,
    Process,
    Program,
    Server,
    answers,
    free_port,
    install,
    serve_bucket,
    start_minio,
)

PAGE = Path(__file__).parents[1] / "docs" / "stores.md"
BEGIN, END = "<!-- made by `make conformance` -->\n", "<!-- end -->\n"
TESTS = ("test_conformance.py", "test_concurrency.py", "test_contest.py")

VERSITYGW = Program(
    label="S3 gateway",
    name="versitygw",
    version="v1.8.0",
    installer="go",
    arguments=("install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"),
    executable="bin/versitygw",
)
RCLONE = Program(
    label="S3 server of rclone",
    name="rclone",
    version="v1.76.0",
    installer="go",
    arguments=("install", "github.com/rclone/rclone@v1.76.0"),
    executable="bin/rclone",
)


def start_versitygw(folder: Path) -> Server:
    """versitygw over a folder. Raises: ServerUnavailableError, RuntimeError."""
    port, key, secret = free_port(), secrets.token_hex(8), secrets.token_hex(16)
    (folder / "data").mkdir()
    process = Process(
        label=VERSITYGW.label,
        command=[str(VERSITYGW.find()), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder / "data")],
        environment={"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret},
        ready=answers(port, "/"),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    return serve_bucket(process, port, key, secret)


def start_rclone(folder: Path) -> Server:
    """`rclone serve s3` over a folder. Raises: ServerUnavailableError, RuntimeError."""
    port, key, secret = free_port(), secrets.token_hex(8), secrets.token_hex(16)
    (folder / "data").mkdir()
    process = Process(
        label=RCLONE.label,
        command=[
            *(str(RCLONE.find()), "serve", "s3", "--addr", f"127.0.0.1:{port}"),
            *("--config", "", "--vfs-cache-mode", "off", str(folder / "data")),
        ],
        environment={"RCLONE_AUTH_KEY": f'"{key},{secret}"'},
        ready=answers(port, "/"),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    return serve_bucket(process, port, key, secret)


PROGRAMS = {"minio": MINIO, "versitygw": VERSITYGW, "rclone": RCLONE}
START: dict[str, Callable[[Path], Server]] = {
    "minio": start_minio,
    "versitygw": start_versitygw,
    "rclone": start_rclone,
}


# --- the table ---


def examine(name: str) -> dict[str, Any]:
    """What `checkpointer doctor` prints of a server."""
    with tempfile.TemporaryDirectory() as folder:
        server = START[name](Path(folder))
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pyspark_checkpointer", "doctor", f"{server.url}/root", "--new", "--json"],
                env=os.environ | {"CHECKPOINTER_STORAGE_OPTIONS": json.dumps(server.storage_options)},
                capture_output=True,
                text=True,
            )
        finally:
            server.stop()
    if done.returncode > 1:
        raise RuntimeError(f"{name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def conformance(name: str) -> str:
    """How many tests of a kind pass on a server, and the names of those that do not."""
    tests = [str(Path(__file__).parent / "storage" / file) for file in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"CHECKPOINTER_S3_SERVERS": name},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    failed = [line.split("::")[1].split("[")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    names = ", ".join(f"`{test}`" for test in sorted({*failed}))
    return f"all but {names}" if failed else "all" if done.returncode == 0 else f"ended with {done.returncode}"


def row(name: str, found: dict[str, Any], passed: str) -> str:
    """A line of the table."""
    checks = {check["name"]: check for check in found["checks"]}
    contest = found["contest"]
    wrong = contest["won_twice"] + contest["won_by_nobody"] + contest["late_reads"]
    untold = [key.removeprefix("bucket: ") for key, check in checks.items() if check["outcome"] == "unknown"]
    uploads = checks["unfinished writes"]["outcome"] == "good"
    cells = (
        f"{name} {PROGRAMS[name].version}",
        "kept" if checks["conditions"]["outcome"] == "good" else "**ignored**",
        f"one winner in each of {contest['rounds']}" if not wrong else f"**wrong in {wrong} of {contest['rounds']}**",
        "yes" if checks["freshness"]["outcome"] == "good" else "**no**",
        "yes" if uploads else "**no**",
        ", ".join(untold) or "nothing",
        passed,
    )
    return f"| {' | '.join(cells)} |\n"


HEAD = (
    "| server | conditions, one request after the other | rounds of eight writers | shows the last write "
    "| can be asked for broken uploads | does not tell | conformance |\n|---|---|---|---|---|---|---|\n"
)


def write_table() -> None:
    """Examine and test each server, and write what came of it into the page."""
    rows = [row(name, examine(name), conformance(name)) for name in START]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{HEAD}{''.join(rows)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    if install(*PROGRAMS.values()):
        sys.exit(1)
    write_table()
