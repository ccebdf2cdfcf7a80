"""Define the differences between the asynchronous and the blocking face.

`scripts/unasync` makes everything else of the blocking face. It replaces `Async` by `Sync` in the names of this module,
so each class here has its counterpart.
"""

from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint.attempt_state import AttemptState
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.display import note
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.runtime import bridge, run_sync

T = TypeVar("T")


async def _after_background(session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Run a verb once the commit in the background has ended.

    An error of that commit is raised here, once.
    """
    try:
        await session.await_background()
    except BaseException:
        # Python would warn of a coroutine that was never awaited.
        work.close()
        raise
    return await work


async def _restored(
    session: Session, work: Callable[[], Coroutine[Any, Any, CheckpointReader | None]]
) -> CheckpointReader | None:
    """Run a restore once the commit in the background has ended, and report it."""
    # Made only here: Python would warn of coroutines within one that is cancelled before it begins.
    return await session.reports.restoring(_after_background(session, work()))


async def tell_async(session: Session, work: Coroutine[Any, Any, T], *, shield: bool = True) -> T:
    """Await work, and note that its error has reached the caller."""
    try:
        return await bridge(work, shield=shield)
    except BaseException as error:
        # Only now is it certain that somebody has it: until then the next call raises it again, and the end of the
        # process logs it.
        session.forget_failure(error)
        raise


def tell_sync(session: Session, work: Coroutine[Any, Any, T]) -> T:
    try:
        return run_sync(work)
    except BaseException as error:
        session.forget_failure(error)
        raise


async def unless_given_up(attempt: CheckpointAttempt, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Await the commit of a block in the background.

    If the end of the block was cancelled, it has aborted the attempt, and its caller knows. An error here would be
    raised by the next call, which has nothing to do with it.
    """
    try:
        await work()
    except InvalidStateError:
        if not attempt.is_given_up or attempt.state is not AttemptState.ABORTED:
            raise


@contextmanager
def doubting(
    doubt: Callable[[], None], work: Callable[[], Coroutine[Any, Any, T]]
) -> Iterator[Callable[[], Coroutine[Any, Any, T]]]:
    """Call `doubt` if a verb takes effect after its caller is gone.

    The caller does not know that it did. `work` makes the coroutine of the verb. The block awaits what this yields in
    its place, in any thread.
    """
    has_landed = is_given_up = False

    async def watched() -> T:
        nonlocal has_landed
        result = await work()
        has_landed = True
        if is_given_up:
            doubt()
        return result

    def give_up() -> None:
        nonlocal is_given_up
        is_given_up = True
        if has_landed:
            doubt()

    try:
        yield watched
    except BaseException:  # also an error of the verb itself, which has not taken effect then
        with suppress(RuntimeError):  # the loop was closed
            # Both functions run on the loop, and what the caller does next comes after this.
            runtime.loop().call_soon_threadsafe(give_up)
        raise


class AsyncFace(Client):
    """A client whose verbs are awaited."""

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that comes after the commit in the background."""
        return await self._tell(_after_background(self.session, work))

    async def _run_commit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a verb that commits."""
        with doubting(self.session.doubt_commit, work) as watched:
            return await self._run(watched())

    async def _tell(self, work: Coroutine[Any, Any, T]) -> T:
        return await tell_async(self.session, work)

    async def _restoring(
        self, session: Session, work: Callable[[], Coroutine[Any, Any, CheckpointReader | None]]
    ) -> CheckpointReader | None:
        """Await a restore, and cancel it with its caller.

        If it ended later, it would change what `begin` builds on.
        """
        with doubting(session.doubt_restore, work) as watched:
            return await tell_async(session, _restored(session, watched), shield=False)

    def _repr_html_(self) -> str:
        """Name the call to make.

        Reading here would stop the event loop of the notebook.
        """
        return note(f"{self!r}: `await list_checkpoints()` lists its checkpoints, a Checkpointer shows them here")


class SyncFace(Client):
    """A client whose verbs block."""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._tell(_after_background(self.session, work))

    def _run_commit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with doubting(self.session.doubt_commit, work) as watched:
            return self._run(watched())

    def _tell(self, work: Coroutine[Any, Any, T]) -> T:
        return tell_sync(self.session, work)

    def _restoring(
        self, session: Session, work: Callable[[], Coroutine[Any, Any, CheckpointReader | None]]
    ) -> CheckpointReader | None:
        with doubting(session.doubt_restore, work) as watched:
            return tell_sync(session, _restored(session, watched))

    def _repr_html_(self) -> str:
        """Show the newest checkpoints in a notebook, or why they cannot be read.

        The restored checkpoint does not change.
        """
        from pyspark_checkpointer.client.html import checkpoints_html  # only in notebooks

        return checkpoints_html(self.session, repr(self))


class AsyncStart:
    """A checkpoint that begins when it is awaited, or when its block is entered.

    Making it cannot await anything.
    """

    async def _begin(self) -> Self:
        raise NotImplementedError

    def _made(self) -> None:
        """Do the steps that are due as soon as the object is made."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self._begin().__await__()


class SyncStart:
    """A checkpoint that begins when it is made."""

    def _begin(self) -> Self:
        raise NotImplementedError

    def _made(self) -> None:
        self._begin()
