"""Records as OpenTelemetry metrics, through the real SDK."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pyspark_checkpointer import Checkpointer, runtime
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics, OperatorMetrics, Requests, RestoreMetrics
from pyspark_checkpointer.client.opentelemetry import opentelemetry_metrics
from pyspark_checkpointer.errors import IllegalArgumentError, SwapNotSentError
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.world import World

COMMIT = CommitMetrics(
    root="s3://bucket/job",
    id=CheckpointId(1, "1a2b3c4d"),
    epoch=1,
    error=None,
    bytes_written=30,
    objects=3,
    bytes_read=0,
    requests=Requests(put=4, swap=1),
    blocked_seconds=1.0,
    total_seconds=2.0,
    operators={"a": OperatorMetrics(10, 1, 1, 10, 0), "b": OperatorMetrics(20, 2, 1, 10, 10)},
)
RESTORE = RestoreMetrics(
    root="s3://bucket/job",
    id=CheckpointId(1, "1a2b3c4d"),
    epoch=1,
    error=None,
    bytes_read=700,
    requests=Requests(get=2),
    blocked_seconds=0.5,
    total_seconds=0.5,
    operators=COMMIT.operators,
)

Points = dict[str, dict[tuple[str, ...], Any]]


def points(reader: InMemoryMetricReader) -> Points:
    """What was exported: for each metric its unit, and by attribute values (without the root) sums and counts."""
    found: Points = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        values = found.setdefault(f"{metric.name} [{metric.unit}]", {})
        for point in metric.data.data_points:
            attributes = dict(point.attributes or {})
            assert attributes.pop("checkpointer.root") == "s3://bucket/job"
            value = (point.count, point.sum) if hasattr(point, "count") else point.value
            values[tuple(f"{name}={text}" for name, text in sorted(attributes.items()))] = value
    return found


def test_every_figure_is_exported_under_its_name_and_unit() -> None:
    reader = InMemoryMetricReader()
    record = opentelemetry_metrics(MeterProvider([reader]))
    record(COMMIT)
    record(COMMIT)
    record(replace(COMMIT, error="FencedError", operators={}, requests=Requests(put=1, get=1)))
    record(RESTORE)
    record(replace(RESTORE, error="CorruptionError", bytes_read=1))
    assert points(reader) == {
        "checkpointer.commit.duration [s]": {(): (2, 4.0), ("error.type=FencedError",): (1, 2.0)},
        "checkpointer.commit.blocked_duration [s]": {(): (2, 2.0), ("error.type=FencedError",): (1, 1.0)},
        "checkpointer.commit.bytes [By]": {("checkpointer.operator=a",): 20, ("checkpointer.operator=b",): 40},
        "checkpointer.commit.objects [{object}]": {("checkpointer.operator=a",): 2, ("checkpointer.operator=b",): 4},
        "checkpointer.commit.requests [{request}]": {
            ("checkpointer.request.kind=get",): 1,
            ("checkpointer.request.kind=put",): 9,
            ("checkpointer.request.kind=swap",): 2,
        },
        "checkpointer.restore.duration [s]": {(): (1, 0.5), ("error.type=CorruptionError",): (1, 0.5)},
        "checkpointer.restore.bytes [By]": {(): 701},
        "checkpointer.restore.requests [{request}]": {("checkpointer.request.kind=get",): 4},
    }


def test_it_is_a_callback_and_finds_the_provider_of_the_process() -> None:
    reader = InMemoryMetricReader()
    set_meter_provider(MeterProvider([reader]))
    with Checkpointer("memory://telemetry", metrics=opentelemetry_metrics()) as client, client.begin() as cp:
        cp.snapshot("op", 0, b"1234")
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    (written,) = (metric for metric in metrics if metric.name == "checkpointer.commit.bytes")
    (point,) = written.data.data_points
    assert dict(point.attributes or {}) == {"checkpointer.root": client.root, "checkpointer.operator": "op"}
    assert point.value == 4


def test_a_missing_package_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("pyspark_checkpointer.storage.connection.importlib.util.find_spec", lambda name: None)
    with pytest.raises(IllegalArgumentError, match=r"needs the package opentelemetry: pip install '.*\[otel\]'$"):
        opentelemetry_metrics()


def test_a_second_phase_that_is_tried_again_counts_once(world: World) -> None:
    records: list[Metrics] = []
    client = world.actor(metrics=records.append)
    cp = client.begin()
    cp.snapshot("op", 0, b"x" * 1000)
    prepared = cp.prepare()
    client.faults.fail("swap", error=SwapNotSentError)
    with pytest.raises(SwapNotSentError):
        prepared.commit()
    prepared.commit()
    runtime.run_sync(client.session.reports.delivered())
    commits = [record for record in records if isinstance(record, CommitMetrics)]
    assert [record.error for record in commits] == ["SwapNotSentError", None]
    assert sum(operator.bytes for record in commits for operator in record.operators.values()) == 1000
    assert sum(record.objects for record in commits) == commits[0].objects
    assert commits[1].blocked_seconds > 0
