"""One program for both faces of the library."""

import inspect
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def settled(answer: T | Awaitable[T]) -> T:
    """What a call of either face comes to: a synchronous one has come to it already."""
    return await answer if inspect.isawaitable(answer) else answer
