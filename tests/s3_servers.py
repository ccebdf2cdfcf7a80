"""More servers that speak the protocol of S3, and the table of docs/stores.md that says what each of them does.

`make conformance` installs them, runs the tests of conformance on them, and writes the table. CI has MinIO alone.
`python -m tests.s3_servers NAME …` does so for some.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
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
# Its go.mod replaces a module, which `go install` refuses of a program that is not the main module.
_SEAWEED = "v0.0.0-20261109003541-7506e5f91cd6"
SEAWEEDFS = Program(
    label="SeaweedFS",
    name="seaweedfs",
    version=_SEAWEED,
    installer="sh",
    arguments=(
        "-ec",
        "PATH=$PATH:/usr/local/go/bin; go mod init weed; "
        "go mod edit -replace github.com/tyler-smith/go-bip39=github.com/cosmos/go-bip39@v1.0.0; "
        f"go get github.com/seaweedfs/seaweedfs@{_SEAWEED}; "
        "go build -mod=mod -o bin/weed github.com/seaweedfs/seaweedfs/weed",
    ),
    executable="bin/weed",
)
_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>x</groupId>'
    "<artifactId>x</artifactId><version>1</version><dependencies><dependency><groupId>org.gaul</groupId>"
    "<artifactId>s3proxy</artifactId><version>2.6.0</version></dependency></dependencies></project>"
)
S3PROXY = Program(
    label="S3Proxy",
    name="s3proxy",
    version="2.6.0",
    installer="sh",
    arguments=("-ec", f"echo '{_POM}' > pom.xml; mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib"),
    executable="lib/s3proxy-2.6.0.jar",
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


def start_seaweedfs(folder: Path) -> Server:
    """SeaweedFS: master, volume server, filer and gateway in one process. Raises as `start_versitygw` does."""
    port, key, secret = free_port(), secrets.token_hex(8), secrets.token_hex(16)
    users = {"credentials": [{"accessKey": key, "secretKey": secret}], "name": "t", "actions": ["Admin"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [users]}))
    (folder / "data").mkdir()
    parts = ("master", "volume", "filer")
    process = Process(
        label=SEAWEEDFS.label,
        command=[
            *(str(SEAWEEDFS.find()), "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-{part}.port={free_port()}" for part in parts),
            *("-filer", "-volume.max=8", "-master.volumeSizeLimitMB=64"),
            *("-s3", f"-s3.port={port}", f"-s3.config={folder / 's3.json'}"),
        ],
        environment={},
        ready=answers(port, "/healthz"),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    return serve_bucket(process, port, key, secret)


def start_s3proxy(folder: Path) -> Server:
    """S3Proxy over a folder. Raises as `start_versitygw` does."""
    port, key, secret = free_port(), secrets.token_hex(8), secrets.token_hex(16)
    (folder / "data").mkdir()
    settings = {
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": key,
        "s3proxy.credential": secret,
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.ignore-unknown-headers": "true",  # else it refuses every request of botocore
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "x",
        "jclouds.credential": "x",
        "jclouds.filesystem.basedir": str(folder / "data"),
    }
    (folder / "conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = Process(
        label=S3PROXY.label,
        command=[
            *("java", "-Xmx400m", "-cp", f"{S3PROXY.find().parent}/*", "org.gaul.s3proxy.Main"),
            *("--properties", str(folder / "conf")),
        ],
        environment={},
        ready=answers(port, "/"),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    return serve_bucket(process, port, key, secret)


PROGRAMS = {"minio": MINIO, "versitygw": VERSITYGW, "rclone": RCLONE, "seaweedfs": SEAWEEDFS, "s3proxy": S3PROXY}
START: dict[str, Callable[[Path], Server]] = {
    "minio": start_minio,
    "versitygw": start_versitygw,
    "rclone": start_rclone,
    "seaweedfs": start_seaweedfs,
    "s3proxy": start_s3proxy,
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
    """How many of the tests pass on a server."""
    tests = [str(Path(__file__).parent / "storage" / file) for file in TESTS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"CHECKPOINTER_S3_SERVERS": name},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    last = done.stdout.splitlines()[-1]
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", last)}
    return f"{counts.get('passed', 0)} of {sum(counts.values())}"


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


def write_table(names: Collection[str]) -> None:
    """Examine and test some servers, and write what came of it into the page. Other rows stay."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {line.split()[1]: f"{line}\n" for line in old.splitlines() if line.startswith("| ")}
    rows |= {name: row(name, examine(name), conformance(name)) for name in names}
    table = "".join(rows.get(name, "") for name in START)
    PAGE.write_text(f"{before}{BEGIN}\n{HEAD}{table}\n{END}{after}")


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(START)
    if install(*(PROGRAMS[name] for name in chosen)):
        sys.exit(1)
    write_table(chosen)
