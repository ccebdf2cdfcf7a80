"""Tell the demo what happens in the job: one line of JSON on the standard output for each event."""

import json
import sys
from typing import Any

Event = dict[str, Any]

_START = '{"event": '

told: set[int] = set()
"""The batches that the demo was told to be finished: Spark says so when it finds the time, not when it is done."""


def emit(event: str, **details: object) -> None:
    """Tell the demo an event. The line is written in one piece, from any thread."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()
    if event == "finished":
        told.add(int(str(details["batch"])))


def parse(line: str) -> Event | None:
    """Return the event in a line, or None for another line: the JVM writes there too."""
    return json.loads(line) if line.startswith(_START) else None
