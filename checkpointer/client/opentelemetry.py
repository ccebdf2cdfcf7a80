"""Record commits and restores as OpenTelemetry metrics.

Use it as `Checkpointer(root, metrics=opentelemetry_metrics())`.

    checkpointer.commit.duration          s           from begin to the acknowledged swap
    checkpointer.commit.blocked_duration  s           how long the caller was blocked
    checkpointer.commit.bytes             By          written, by operator
    checkpointer.commit.objects           {object}    written, by operator
    checkpointer.commit.requests          {request}   sent, by kind
    checkpointer.restore.duration         s           duration of `restore()`
    checkpointer.restore.bytes            By          read by `restore()`
    checkpointer.restore.requests         {request}   sent by `restore()`, by kind

Durations are histograms, and their counts are the numbers of commits and restores. The others are counters. Attributes:
`checkpointer.root`, `checkpointer.operator`, `checkpointer.request.kind`, and `error.type` on the duration of what
failed. `pyspark_checkpointer.checkpoint.metrics` says what each metric counts.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING

from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics, MetricsCallback, Requests
from pyspark_checkpointer.storage.connection import require

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, MeterProvider

ROOT_ATTRIBUTE = "checkpointer.root"
OPERATOR_ATTRIBUTE = "checkpointer.operator"
KIND_ATTRIBUTE = "checkpointer.request.kind"
ERROR_ATTRIBUTE = "error.type"


def opentelemetry_metrics(meter_provider: "MeterProvider | None" = None) -> MetricsCallback:
    """Return a callback that records to `meter_provider`.

    Args:
        meter_provider: A meter provider of OpenTelemetry; by default the global one of the process.

    Raises:
        IllegalArgumentError: The package opentelemetry-api is not installed.

    Examples:
        >>> from pyspark_checkpointer.client.opentelemetry import opentelemetry_metrics
        >>> ck = Checkpointer("state/visits", metrics=opentelemetry_metrics())
    """
    require("opentelemetry", "otel", "opentelemetry_metrics()")
    from opentelemetry import metrics  # of the extra `otel`, only for those who ask for it

    meter = metrics.get_meter("checkpointer", meter_provider=meter_provider)
    commit_time = meter.create_histogram("checkpointer.commit.duration", "s", "From begin to the acknowledged swap")
    blocked = meter.create_histogram("checkpointer.commit.blocked_duration", "s", "How long the caller was held up")
    written = meter.create_counter("checkpointer.commit.bytes", "By", "Stored bytes written")
    objects = meter.create_counter("checkpointer.commit.objects", "{object}", "Objects written")
    commit_requests = meter.create_counter("checkpointer.commit.requests", "{request}", "Requests of commits")
    restore_time = meter.create_histogram("checkpointer.restore.duration", "s", "Of restore()")
    read = meter.create_counter("checkpointer.restore.bytes", "By", "Bytes read by restore()")
    restore_requests = meter.create_counter("checkpointer.restore.requests", "{request}", "Requests of restore()")

    def record(metrics: Metrics) -> None:
        root = {ROOT_ATTRIBUTE: metrics.root}
        outcome = root if metrics.error is None else root | {ERROR_ATTRIBUTE: metrics.error}
        if isinstance(metrics, CommitMetrics):
            commit_time.record(metrics.total_seconds, outcome)
            blocked.record(metrics.blocked_seconds, outcome)
            for name, operator in metrics.operators.items():
                written.add(operator.bytes, root | {OPERATOR_ATTRIBUTE: name})
                objects.add(operator.objects, root | {OPERATOR_ATTRIBUTE: name})
            _add(commit_requests, metrics.requests, root)
        else:
            restore_time.record(metrics.total_seconds, outcome)
            read.add(metrics.bytes_read, root)
            _add(restore_requests, metrics.requests, root)

    return record


def _add(counter: "Counter", requests: Requests, root: dict[str, str]) -> None:
    for kind, number in asdict(requests).items():
        # Adding zero would still make a time series for this kind of request.
        if number:
            counter.add(number, root | {KIND_ATTRIBUTE: kind})
