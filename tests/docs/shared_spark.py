"""Run programs one after the other in one JVM, which PySpark finds through its environment.

Each program is a process of its own, as for a reader. Only Java starts once, which is most of the time of a small job.
`python shared_spark.py serve` starts Java, and `python shared_spark.py PROGRAM` runs a program. Java takes relative
paths from the folder in which it was started. So programs with such paths run there, and tests empty it in between.
"""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SharedSpark:
    """A JVM for Spark that programs use one after the other."""

    folder: Path
    """Where Java runs."""
    environment: dict[str, str]
    """With these variables PySpark uses this JVM."""

    def empty(self) -> Path:
        """Delete what the programs before left in the folder, and return it."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.folder


@contextmanager
def shared_spark(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[SharedSpark]:
    """Start a JVM for Spark in a new folder."""
    folder.mkdir()
    # In a process of its own, because PySpark keeps what it opens for Java until its process ends.
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield SharedSpark(folder, json.loads(server.stdout.readline()))
        finally:
            server.stdin.close()
            server.wait(60)


def serve() -> None:
    """Start Java, print how PySpark finds it, and end Java when the standard input ends."""
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway(popen_kwargs={"stdout": subprocess.DEVNULL})
    parameters = gateway.gateway_parameters
    found = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    gateway.proc.stdin.close()  # Java ends with it.
    gateway.proc.wait(60)


def run(program: str) -> None:
    """Run a program, and stop its Spark: the next program starts its own."""
    sys.argv, sys.path[0] = sys.argv[1:], str(Path(program).resolve().parent)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        from pyspark import SparkContext

        if (context := SparkContext._active_spark_context) is not None:
            context.stop()


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else run(sys.argv[1])
