"""Define the kinds of faults that a request can meet.

Each is a function that is called in place of sending the request.
"""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError, IllegalArgumentError
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.testing.requests import Fault, Request, Send

Action = Callable[[Request], object]
"""A function of a test, called in a thread with the request that it is to act at."""


def refuse_coroutine(returned: object, whose: str) -> None:
    """Raise `IllegalArgumentError` for a coroutine.

    Nobody awaits it, so nothing was done.
    """
    if inspect.iscoroutine(returned):
        returned.close()
        raise IllegalArgumentError(
            f"{whose} returned a coroutine, which would not be awaited: give a function that returns when it is done, "
            "as with asyncio.run"
        )


def through(fault: Fault, send: Send) -> Send:
    """Return a way to the store that goes through a fault."""
    return lambda request: fault(request, send)


def calling(action: Action, after: bool) -> Fault:
    """Return a fault that calls `action` before or after the request is sent."""

    async def act(request: Request) -> None:
        # In a thread: the action may wait, as a gate does, and the event loop has to serve other requests meanwhile.
        refuse_coroutine(await asyncio.to_thread(action, request), "the action")

    async def fault(request: Request, send: Send) -> Any:
        if not after:
            await act(request)
        try:
            return await send(request)
        finally:  # a request that is refused was answered too
            if after:
                await act(request)

    return fault


def failing(error: type[Exception], after: bool) -> Fault:
    """Return a fault that raises `error` before or after the request took effect."""

    async def fault(request: Request, send: Send) -> Any:
        if after:
            # A request that the store refused has lost its answer too.
            with suppress(CheckpointError):
                await send(request)
        raise error(f"{request.kind} {request.path}: failed by the test")

    return fault


def delaying(before: float, after: float) -> Fault:
    """Return a fault that holds the request and its answer up.

    `before` and `after` are the seconds that each of them waits.
    """

    async def fault(request: Request, send: Send) -> Any:
        await asyncio.sleep(before)
        answer = await send(request)
        await asyncio.sleep(after)
        return answer

    return fault


def flipping(bit: int) -> Fault:
    """Return a fault that flips one bit of an answer.

    `bit` is its number, which wraps around at the end.
    """

    async def fault(request: Request, send: Send) -> Any:
        answer = await send(request)
        data = bytearray(answer.data if isinstance(answer, Blob) else answer if isinstance(answer, bytes) else b"")
        if data:
            data[bit // 8 % len(data)] ^= 1 << bit % 8
            answer = replace(answer, data=bytes(data)) if isinstance(answer, Blob) else bytes(data)
        return answer

    return fault


def tearing(share: float) -> Fault:
    """Return a fault that writes the beginning of a put, and fails."""

    async def fault(request: Request, send: Send) -> Any:
        if request.kind != "put":
            return await send(request)
        part = bytes(memoryview(request.data).cast("B")[: int(len(request.data) * share)])
        await send(replace(request, data=part))
        raise DependencyError(f"put {request.path}: broke off, says the test")

    return fault
