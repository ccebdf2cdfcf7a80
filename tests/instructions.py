"""Call a function before each instruction that Python runs in some files."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def each_instruction(counts: Callable[[str], bool], step: Callable[[], None]) -> Iterator[None]:
    """Call `step` before each instruction of this thread in this block whose file counts."""
    thread = threading.get_ident()

    def instruction(code: CodeType, _: object) -> None:
        if threading.get_ident() == thread and counts(code.co_filename):
            step()

    with _monitored(instruction) if sys.version_info >= (3, 12) else _traced(counts, step):
        yield


@contextmanager
def _traced(counts: Callable[[str], bool], step: Callable[[], None]) -> Iterator[None]:
    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not counts(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            step()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def _monitored(instruction: Callable[[CodeType, object], None]) -> Iterator[None]:
    """On Python 3.12 and newer `settrace` leaves out instructions of functions that it sees for the first time."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, __name__)
    monitoring.register_callback(tool, event, instruction)
    monitoring.set_events(tool, event)
    try:
        yield
    finally:
        monitoring.set_events(tool, monitoring.events.NO_EVENTS)
        monitoring.free_tool_id(tool)
