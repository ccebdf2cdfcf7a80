"""What the clients of a history asked for and were told, as a plain list that somebody else can judge.

One JSON object a line, in the order of the calls:

    {"process": 3, "call": 17, "return": 24, "op": {"f": "write", "partition": "p", "epoch": 2}, "result": {"at": 5}}

`call` and `return` count the events of the whole history. Where `return` and `result` are null nobody knows whether the
operation took effect, nor when: its process died, or was told so. A process has one operation at a time, and none
after one whose outcome is unknown: whoever goes on is another process.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


class History:
    """Notes operations as they begin and end. Actors are known by name, processes by number."""

    def __init__(self) -> None:
        self.operations: list[dict[str, Any]] = []
        self._events = itertools.count()
        self._processes: dict[str, int] = {}
        self._numbers = itertools.count()

    def call(self, actor: str, op: Fields) -> dict[str, Any]:
        if actor not in self._processes:
            self._processes[actor] = next(self._numbers)
        operation = {
            "process": self._processes[actor],
            "call": next(self._events),
            "return": None,
            "op": dict(op),
            "result": None,
        }
        self.operations.append(operation)
        return operation

    def answer(self, operation: dict[str, Any], result: Fields) -> None:
        operation["return"], operation["result"] = next(self._events), dict(result)

    def unknown(self, actor: str) -> None:
        """The last operation of this actor may have taken effect, or may still."""
        self._processes.pop(actor, None)

    def json_lines(self) -> str:
        return "".join(json.dumps(operation) + "\n" for operation in self.operations)
