"""A real server of Spark Connect, and a process that is its client."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from tests.servers import Process, Service, free_port

PROJECT = Path(__file__).parents[2]
SPARK = Path(pyspark.__file__).parents[1]
"""Where PySpark is: `make matrix` runs the tests on another one than `.venv` has."""
CLIENT = Path(__file__).with_name("connect_client.py")
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.python.daemon.module": "pyspark_checkpointer.spark.daemon",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
}

DEATH_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectServer(Service):
    """A running server. It can be killed, and started again with the same address."""

    url: str

    def wait(self) -> None:
        """Wait until somebody else has killed it."""
        deadline = time.monotonic() + DEATH_SECONDS
        while self.pid is not None:
            assert time.monotonic() < deadline, "nobody has killed the server"
            time.sleep(0.05)


def start_server(
    folder: Path, master: str = "local[2]", python: str = sys.executable, **settings: str
) -> ConnectServer:
    """A server with two cores, as `sbin/start-connect-server.sh` starts it, but without a daemon."""
    port = free_port()
    home = Path(pyspark.__file__).parent
    settings = SETTINGS | {"spark.connect.grpc.binding.port": str(port)} | settings
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    process = Process(
        label="Spark Connect",
        command=[str(home / "bin" / "spark-submit"), "--class", SERVER, "--master", master, *conf],
        environment={
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "PYSPARK_PYTHON": python,
            "PYTHONPATH": os.pathsep.join(map(str, (PROJECT / "src", PROJECT))),
        },
        ready=lambda: _listens(port),
        log=folder / "log",
        crash=signal.SIGKILL,
    )
    server = ConnectServer(url=f"sc://127.0.0.1:{port}", process=process)
    server.start()
    return server


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(slots=True)
class ConnectClient:
    """A process with a session of Spark Connect, which runs functions of a program, `connect_client.py`, by name."""

    server: ConnectServer
    program: Path = CLIENT
    _process: "subprocess.Popen[str]" = field(init=False)

    def __post_init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(self.program), self.server.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PROJECT / "src", PROJECT, SPARK)))},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, function: str, folder: Path, *args: Any) -> None:
        """Begin to run a function, whose answer `answer` returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, str(folder), *args]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return what the function returned. Raises `AssertionError` with its traceback if it failed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"answer"'):
                return json.loads(line)["answer"]
            if line.startswith('{"failed"'):
                raise AssertionError(json.loads(line)["failed"])
        raise AssertionError("the client has ended without an answer")

    def run(self, function: str, folder: Path, *args: Any) -> Any:
        self.begin(function, folder, *args)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> None:
        """Wait until somebody else has killed it."""
        self._process.wait(DEATH_SECONDS)
