"""How the tests start Java: compiled for seconds, and with Spark's classes loaded from an archive.

A test run starts some seventy JVMs with Spark, and each of them spends most of its life on loading and checking the
same classes. An archive of class data (a standard part of OpenJDK) takes a third off such a process. `python -m
tests.jvm` makes it, in the cache of tests/servers.py; without it, or with another Java or PySpark than it was made
with, Java loads the classes as always.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kafka import java
from tests.servers import cache

# Every Java here lives for seconds: compiling it well costs a third of the time of what it does.
# With one compiler it has 48 MiB for compiled code. A session of tests fills them, and Java then seeks what to discard.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
if sys.platform == "linux":
    # Without a library of Hadoop's, Spark starts `chmod` twenty times for a query on a local folder. Java starts it by
    # way of a helper program, unless it is told not to, which takes a third of the time.
    QUICK += " -Djdk.lang.Process.launchMechanism=VFORK"

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""With these options Spark does not compile its plans, unless a program says so, but does the same."""

MAKING_SECONDS = 300
KEPT = 4
"""Archives that are kept, of 200 MB each: those that were made last."""

PROGRAM = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
Path("input").mkdir()
Path("input/1.csv").write_text("a,1\\nb,2\\n")

def batch(frame, number):
    frame.groupBy("key").agg(F.sum("amount")).mapInArrow(lambda tables: tables, "key string, amount long").collect()
    frame.repartition(2, "key").write.mode("append").parquet("output")
    spark.read.parquet("output").join(frame, "key").toArrow()

source = spark.readStream.schema("key string, amount long").csv("input")
writer = source.writeStream.foreachBatch(batch).option("checkpointLocation", "checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()  # Java ends with it, and writes the archive
jvm.wait(timeout=200)
"""


def archive() -> Path | None:
    """The archive of this Java and this Spark, whether it is there or not; None without one of the two."""
    spark = importlib.util.find_spec("pyspark")
    try:
        plain = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}  # it would quote them
        asked = subprocess.run([java(), "-version"], env=plain, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    if spark is None or spark.origin is None:
        return None
    jars = sorted(Path(spark.origin).with_name("jars").glob("*.jar"))
    # Java takes no archive of jars with other paths or times, and says nothing: a checkout that was made anew at the
    # same path needs an archive of its own.
    made_of = "\n".join([java(), asked.stderr.decode(), *(f"{jar} {jar.stat().st_mtime_ns}" for jar in jars)])
    return cache() / f"spark-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jsa"


def options() -> str:
    """What `JDK_JAVA_OPTIONS` says in tests."""
    path = archive()
    if path is None or not path.exists():
        return QUICK
    # A Java with other classes, such as Kafka's, cannot take it: it goes on without, and need not say so.
    return f"{QUICK} -XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


def make() -> None:
    """Make the archive unless it is there."""
    path = archive()
    if path is None:
        return
    cache().mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        folder = path.with_suffix(".work")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        print("Archive of Spark's classes", flush=True)
        dump = f"-XX:ArchiveClassesAtExit={folder / 'made.jsa'} -Xlog:cds=off -Xlog:cds+dynamic=off"
        environment = os.environ | {
            "JDK_JAVA_OPTIONS": QUICK,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f'--driver-java-options "{dump}" pyspark-shell',
        }
        program = [sys.executable, "-c", PROGRAM]
        try:
            subprocess.run(program, cwd=folder, env=environment, timeout=MAKING_SECONDS, capture_output=True)
        except subprocess.TimeoutExpired:
            print(f"Archive of Spark's classes: not made within {MAKING_SECONDS} s; Java loads them as always")
        if (folder / "made.jsa").exists():
            (folder / "made.jsa").rename(path)
        shutil.rmtree(folder)
        for old in sorted(cache().glob("spark-*.jsa"), key=lambda made: made.stat().st_mtime)[:-KEPT]:
            old.unlink()


if __name__ == "__main__":
    make()
