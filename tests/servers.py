"""The object stores that tests run against: MinIO for S3, Azurite for Azure, fake-gcs-server for Google; on 127.0.0.1.

That of volumes of Databricks is ours (tests/volumes_server.py), as there is no other.

`python -m tests.servers` installs them into a cache outside the work tree, where go and npm are there to do
it. `CHECKPOINTER_CACHE` moves the cache. The fixtures `s3_server`, `azure_server`, `gcs_server` and `databricks_server`
start them.
tests/kafka.py has one more server.

A server dies with the process that started it, even when that is killed: a watcher holds the reading end of a
pipe whose writing end only the starter has.
"""

import contextlib
import fcntl
import http.client
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.volumes_server import VOLUME

STARTUP_SECONDS = 60
SHUTDOWN_SECONDS = 10
INSTALL_SECONDS = 1200


def cache() -> Path:
    """Where the server programs are kept."""
    if chosen := os.environ.get("CHECKPOINTER_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "spark-state-checkpointer"


# --- programs: what is installed, and with what ---


class ServerUnavailableError(Exception):
    """A server program is not on this machine; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A server program of a fixed version, installed by a package manager into a folder of its own."""

    label: str
    name: str
    version: str
    installer: str
    arguments: tuple[str, ...]
    executable: str

    @property
    def folder(self) -> Path:
        return cache() / f"{self.name}-{self.version}"

    @property
    def log(self) -> Path:
        """What the installation printed; there only after one that failed."""
        return cache() / f"{self.name}-{self.version}.log"

    def find(self) -> Path:
        """The program's path. Raises: ServerUnavailableError."""
        path = self.folder / self.executable
        if path.exists():
            return path
        if self.log.exists():
            raise ServerUnavailableError(f"{self.label}: {self.name} could not be installed, see {self.log}")
        if not find_installer(self.installer):
            raise ServerUnavailableError(f"{self.label}: {self.installer} not found, it installs {self.name}")
        raise ServerUnavailableError(f"{self.label}: {self.name} is not installed, `make servers` does it")

    def install(self) -> None:
        """Install the program unless it is there. Raises: ServerUnavailableError."""
        cache().mkdir(parents=True, exist_ok=True)
        with (cache() / f"{self.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            installer = find_installer(self.installer)
            if installer and not (self.folder / self.executable).exists():
                self._install(installer)
        self.find()

    def _install(self, installer: str) -> None:
        partial = self.folder.with_name(f"{self.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        print(f"{self.label}: {self.installer} {' '.join(self.arguments)}", flush=True)
        with self.log.open("wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                [installer, *self.arguments],
                cwd=partial,
                env=os.environ | {"GOBIN": str(partial / "bin"), "HOME": str(Path.home())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_SECONDS,
            )
            if done.returncode == 0 and (partial / self.executable).exists():
                partial.rename(self.folder)
                self.log.unlink()


def find_installer(name: str) -> str | None:
    """The path of a package manager; go's own installation folder is often not on the PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/go/bin")


MINIO = Program(
    label="S3 server",
    name="minio",
    version="v0.0.0-20260212201848-7aac2a2c5b7c",
    installer="go",
    arguments=("install", "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"),
    executable="bin/minio",
)
AZURITE = Program(
    label="Azure server",
    name="azurite",
    version="3.35.0",
    installer="npm",
    arguments=("install", "--prefix", ".", "--no-audit", "--no-fund", "azurite@3.35.0"),
    executable="node_modules/.bin/azurite-blob",
)
# Versions before August 2026 ignored the conditions of uploads in one request.
FAKE_GCS = Program(
    label="GCS server",
    name="fake-gcs-server",
    version="v1.56.1",
    installer="go",
    arguments=("install", "github.com/fsouza/fake-gcs-server@v1.56.1"),
    executable="bin/fake-gcs-server",
)


# --- processes: start, stop, start again ---


@dataclass(slots=True)
class Process:
    """A server process that can be killed and started again on the same port and data."""

    label: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    log: Path
    crash: signal.Signals
    _child: subprocess.Popen[bytes] | None = None
    _watcher: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def start(self) -> None:
        """Start it and wait until it answers; nothing to do if it runs. Raises: RuntimeError with its log."""
        if self.pid is not None:
            return
        self._release()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watcher = _watch(self._child.pid)
        self._wait_until_ready()

    def stop(self) -> None:
        """Ask it to end, and make it end after a while."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would, as far as its data survives one."""
        self._end(self.crash)

    def _end(self, how: signal.Signals) -> None:
        if self._child is not None and self.pid is not None:
            self._child.send_signal(how)
            try:
                self._child.wait(SHUTDOWN_SECONDS)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._release()

    def _release(self) -> None:
        """End the watcher, before the system can give the server's pid to somebody else."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + STARTUP_SECONDS
        while not self.ready():
            if self.pid is None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.label} did not come up:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)


def answers(port: int, path: str) -> Callable[[], bool]:
    """Whether an HTTP server does not say that it is unable to serve."""

    def ask() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ask


def _watch(pid: int) -> subprocess.Popen[bytes]:
    """A shell that kills `pid` when this process is gone."""
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -KILL "$1"', "watcher", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def free_port() -> int:
    """A port that nothing listens on, below those that systems hand to outgoing connections.

    So nobody takes it while its server is down between a kill and a restart.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


# --- servers: what a test is handed ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running server."""

    process: Process = field(repr=False)

    @property
    def pid(self) -> int | None:
        """The server's process id, or None while it is down."""
        return self.process.pid

    def start(self) -> None:
        """Start it again with the same address and data; nothing to do if it runs."""
        self.process.start()

    def stop(self) -> None:
        """Stop it in an orderly way."""
        self.process.stop()

    def kill(self) -> None:
        """End it as a crash would; what it answered for is still there after `start`."""
        self.process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Server(Service):
    """A running object store with an empty bucket or container: `s3://<bucket>`, `abfs://<container>`…"""

    url: str
    storage_options: dict[str, Any] = field(repr=False)


def start_minio(folder: Path) -> Server:
    """MinIO with random credentials and a bucket. Raises: ServerUnavailableError, RuntimeError."""
    port, key, secret = free_port(), secrets.token_hex(8), secrets.token_hex(16)
    address = f"127.0.0.1:{port}"
    process = Process(
        label=MINIO.label,
        command=[str(MINIO.find()), "server", "--address", address, "--quiet", str(folder / "data")],
        environment={
            "MINIO_ROOT_USER": key,
            "MINIO_ROOT_PASSWORD": secret,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        },
        ready=answers(port, "/minio/health/ready"),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    return serve_bucket(process, port, key, secret)


def serve_bucket(process: Process, port: int, key: str, secret: str) -> Server:
    """Start a server that speaks the protocol of S3, with a bucket."""
    # To read the certificates of the machine takes each client 20 ms, and without TLS nobody asks for them.
    endpoint = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1", "verify": False}

    def create_bucket() -> None:
        import botocore.session

        client = botocore.session.get_session().create_client(
            "s3", aws_access_key_id=key, aws_secret_access_key=secret, **endpoint
        )
        client.create_bucket(Bucket="checkpoints")

    options = {"key": key, "secret": secret, "client_kwargs": endpoint}
    return _serve(Server(url="s3://checkpoints", storage_options=options, process=process), create_bucket)


def start_azurite(folder: Path) -> Server:
    """Azurite with its well-known account and a container. Raises: ServerUnavailableError, RuntimeError."""
    port = free_port()
    process = Process(
        label=AZURITE.label,
        command=[
            *(str(AZURITE.find()), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
            *("--location", str(folder / "data"), "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ],
        environment={},
        ready=answers(port, "/"),
        log=folder / "log",
        crash=signal.SIGTERM,  # it saves its index every 5 seconds and on this signal: a kill loses data
    )
    connection = (
        "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
        "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
        f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    )

    def create_container() -> None:
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(connection) as service:
            service.create_container("checkpoints")

    options = {"connection_string": connection}
    return _serve(Server(url="abfs://checkpoints", storage_options=options, process=process), create_container)


def start_fake_gcs(folder: Path) -> Server:
    """fake-gcs-server, which asks for no credentials, with a bucket. Raises: ServerUnavailableError, RuntimeError."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    process = Process(
        label=FAKE_GCS.label,
        command=[
            *(str(FAKE_GCS.find()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
            *("-backend", "filesystem", "-filesystem-root", str(folder / "data"), "-log-level", "error"),
        ],
        environment={},
        ready=answers(port, "/_internal/healthcheck"),
        log=folder / "log",
        crash=signal.SIGKILL,  # an object that is being written over is lost, since it is written in two steps
    )

    def create_bucket() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", "/storage/v1/b?project=tests", '{"name": "checkpoints"}')
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{FAKE_GCS.label}: no bucket: {answer.read()!r}")

    options = {"token": "anon", "endpoint_url": address}
    return _serve(Server(url="gs://checkpoints", storage_options=options, process=process), create_bucket)


def start_volumes(folder: Path) -> Server:
    """A server of our own that has a volume. Raises: RuntimeError."""
    port, token = free_port(), secrets.token_hex(16)
    process = Process(
        label="server of volumes",
        command=[sys.executable, "-m", "tests.volumes_server", str(port), str(folder / "files"), token],
        environment={"PYTHONPATH": os.pathsep.join(sys.path)},
        ready=answers(port, "/"),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "token": token}
    return _serve(Server(url=f"dbfs:{VOLUME}", storage_options=options, process=process), lambda: None)


def _serve(server: Server, create: Callable[[], None]) -> Server:
    server.start()
    try:
        create()
    except BaseException:
        server.kill()
        raise
    return server


def install(*programs: Program) -> int:
    """Install the programs at once; say which are missing and why. Returns an exit status."""

    def missing(program: Program) -> str | None:
        try:
            program.install()
        except ServerUnavailableError as unavailable:
            return str(unavailable)
        return None

    with ThreadPoolExecutor() as pool:
        reasons = [reason for reason in pool.map(missing, programs) if reason]
    for reason in reasons:
        print(f"{reason}; its tests cannot run", file=sys.stderr)
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(install(MINIO, AZURITE, FAKE_GCS))
