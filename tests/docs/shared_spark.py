"""Run the programs of a page one after the other in one JVM, which PySpark finds through its environment.

Each program is a process of its own, as for a reader. Only Java starts once, which is most of the time of a small job.
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def shared_spark(folder: Path) -> Iterator[dict[str, str]]:
    """Start a JVM for Spark in a folder, and yield the environment in which PySpark uses it."""
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway(popen_kwargs={"cwd": folder})
    try:
        parameters = gateway.gateway_parameters
        yield {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
    finally:
        gateway.close()
        gateway.proc.stdin.close()  # Java ends with it
        gateway.proc.wait(60)


def main() -> None:
    """Run the program that is the first argument, and stop its Spark: the next program starts its own."""
    program = sys.argv[1]
    sys.argv, sys.path[0] = sys.argv[1:], str(Path(program).resolve().parent)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        from pyspark import SparkContext

        if (context := SparkContext._active_spark_context) is not None:
            context.stop()


if __name__ == "__main__":
    main()
