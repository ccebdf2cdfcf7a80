"""A real Kafka broker on 127.0.0.1, and the jars with which Spark reads from it.

`python -m tests.kafka` fetches both from Maven, with the Ivy that PySpark brings, into the cache of tests/servers.py.
Each line of Spark has jars of its own.
The fixture `kafka_server` starts the broker; it dies with the process that started it.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from signal import SIGKILL

from tests.servers import Process, Program, Service, free_port, install

BROKER = "4.4.0"
LOG4J = "2.25.5"  # as the broker's
SOURCES = {"3.5": "3.5.0", "4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0"}
"""A version of Spark's source for Kafka for each line of PySpark. A line without one, as 4.3, takes the last."""

FORMAT_SECONDS = 60


def java() -> str:
    """What `scripts/run` has chosen, else any."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def ivy() -> str:
    """The jar of PySpark's Ivy; without PySpark a name that is not there."""
    spark = importlib.util.find_spec("pyspark")
    folders = spark.submodule_search_locations if spark is not None else None
    return next((str(jar) for folder in folders or () for jar in Path(folder).glob("jars/ivy-*.jar")), "ivy.jar")


def source_version() -> str:
    """Return the version of Spark's source for Kafka: of this PySpark's line, or the newest."""
    line = ""
    with contextlib.suppress(PackageNotFoundError):
        line = ".".join(version("pyspark").split(".")[:2])
    return SOURCES.get(line, [*SOURCES.values()][-1])


SCALA = "2.12" if source_version().startswith("3.") else "2.13"


def fetched(label: str, name: str, version: str, configuration: str, jar: str) -> Program:
    """Return what Ivy fetches for a configuration of kafka.xml, which has this jar."""
    return Program(
        label=label,
        name=name,
        version=version,
        installer=java(),
        arguments=(
            *(f"-Dkafka.version={BROKER}", f"-Dlog4j.version={LOG4J}"),
            *(f"-Dsource.version={source_version()}", f"-Dsource.scala={SCALA}"),
            *("-jar", ivy(), "-ivy", str(Path(__file__).with_suffix(".xml")), "-cache", "ivy"),
            *("-confs", configuration, "-types", "jar", "bundle", "-retrieve", "jars/[artifact]-[revision].[ext]"),
        ),
        executable=f"jars/{jar}-{version}.jar",
    )


KAFKA = fetched("Kafka", "kafka", BROKER, "broker", "kafka_2.13")
SOURCE = fetched(
    "Spark's source for Kafka", "kafka-source", source_version(), "source", f"spark-sql-kafka-0-10_{SCALA}"
)


def spark_jars() -> list[Path]:
    """What `spark.jars` must name for `format("kafka")`. Raises: ServerUnavailableError."""
    return sorted(SOURCE.find().parent.glob("*.jar"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker(Service):
    """A running Kafka of one node."""

    bootstrap: str

    def create_topic(self, name: str, partitions: int) -> None:
        """An empty topic that clients can use at once."""
        from kafka import KafkaAdminClient

        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics({name: {"num_partitions": partitions}}, wait_for_metadata=True)

    def produce(self, topic: str, records: Iterable[tuple[int, str]]) -> None:
        """Append each value to its partition, in this order; returns when Kafka has them all."""
        from kafka import KafkaProducer

        with KafkaProducer(bootstrap_servers=self.bootstrap, acks="all") as producer:
            sent = [producer.send(topic, value.encode(), partition=partition) for partition, value in records]
            for future in sent:
                future.get(timeout=60)

    def ends(self, topic: str) -> dict[int, int]:
        """For each partition the offset that its next record gets."""
        from kafka import KafkaConsumer, TopicPartition

        with contextlib.closing(KafkaConsumer(bootstrap_servers=self.bootstrap)) as consumer:
            partitions = consumer.partitions_for_topic(topic)
            offsets = consumer.end_offsets([TopicPartition(topic, partition) for partition in partitions])
        return {at.partition: offset for at, offset in offsets.items()}


def start_kafka(folder: Path) -> Broker:
    """A broker, which is its own controller, without a topic. Raises: ServerUnavailableError, RuntimeError."""
    SOURCE.find()  # Without it no query reads from the broker.
    program = [java(), "-Xmx256m", "-cp", f"{KAFKA.find().parent}/*"]
    port, controller = free_port(), free_port()
    bootstrap = f"127.0.0.1:{port}"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"BROKER://{bootstrap},CONTROLLER://127.0.0.1:{controller}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "broker.session.timeout.ms": "3000",  # for so long a broker that was killed is kept from coming back
        "broker.heartbeat.interval.ms": "500",
        "log.dirs": str(folder / "data"),
        "log.retention.ms": "-1",
        "log.cleaner.dedupe.buffer.size": str(2**21),  # half the heap, unless told
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    storage = ["kafka.tools.StorageTool", "format", "--standalone", "--cluster-id", "tests", "--config", str(config)]
    done = subprocess.run([*program, *storage], capture_output=True, text=True, timeout=FORMAT_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{KAFKA.label}: cannot format its storage:\n{done.stdout}{done.stderr}")
    process = Process(
        label=KAFKA.label,
        command=[*program, "kafka.Kafka", str(config)],
        environment={},
        ready=_serves(port),
        log=folder / "log",
        crash=SIGKILL,
    )
    broker = Broker(bootstrap=bootstrap, process=process)
    broker.start()
    return broker


def _serves(port: int) -> Callable[[], bool]:
    """Whether the broker takes part: it listens for some time before its controller lets it."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    def ask() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}").close()  # comes up when there is a broker to ask
        except (KafkaError, OSError):
            return False
        return True

    return ask


if __name__ == "__main__":
    sys.exit(install(KAFKA, SOURCE))
