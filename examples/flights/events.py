"""What the job tells the demo: one line of JSON on the standard output for each event."""

import json
import sys
from typing import Any

Event = dict[str, Any]

_START = '{"event": '

told: set[int] = set()
"""The batches that the demo was told to be finished: Spark says so when it finds the time, not when it is done."""


def emit(event: str, **details: object) -> None:
    """Tell the demo. A line goes out whole, from whatever thread."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()
    if event == "finished":
        told.add(int(str(details["batch"])))


def parse(line: str) -> Event | None:
    """The event in a line, or None where the line is something else: the JVM writes there too."""
    return json.loads(line) if line.startswith(_START) else None
