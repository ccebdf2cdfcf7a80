"""The rules of the protocol, each taken out of the real code, to see that the proofs notice."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark_checkpointer.admin import rollback, savepoints
from pyspark_checkpointer.admin.retention import classifier, delete, garbage_collect, policy, reachability, retire
from pyspark_checkpointer.checkpoint import (
    commit,
    fencing,
    history,
    latest,
    metadata,
    prepared,
    restore,
    save,
    session,
    upload,
)
from pyspark_checkpointer.storage import compare_and_swap
from pyspark_checkpointer.storage.memory import store as memory


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug: `old` stands once in the source of `function`, and is replaced with `new`.

    It shows in one `scene`, or in random walks.
    """

    name: str
    function: Callable[..., Any]
    old: str
    new: str
    scene: str | None = None
    walk: int = 0
    """The walk with which the search for it begins: a rare one that is known to show it."""
    long: bool = False
    """Whether it takes many seconds: then the long run alone has it."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """The bug is there until the end of the block, for all who call the function."""
        planted_in = inspect.unwrap(self.function)  # the function itself, below its decorators
        source = textwrap.dedent(inspect.getsource(planted_in))
        assert source.count(self.old) == 1, f"{self.name}: the code it changes has changed: {source}"
        scope: dict[str, Any] = {}
        code = compile(source.replace(self.old, self.new), f"<{self.name}>", "exec")
        exec(code, planted_in.__globals__, scope)
        sound = planted_in.__code__
        planted_in.__code__ = inspect.unwrap(scope[planted_in.__name__]).__code__
        try:
            yield
        finally:
            planted_in.__code__ = sound


NO_SEQUENCE_RULE = Planted(
    "a sweep that ignores the sequence rule",
    classifier.GarbageClassifier.__call__,
    "if owner.sequence > self.sequence:",
    "if False:",
)

PREPARED_UNPROTECTED = Planted(
    "what is prepared is swept",
    reachability.index_live,
    "if head.prepared is not None:",
    "if False:",
)
"""Seen only without the sequence rule, which spares what is prepared too."""

PLANTED = (
    Planted(
        "unconditional swap",
        memory.MemoryStore.compare_and_swap,
        "if (None if found is None else found.tag) != expected:",
        "if False:",
        scene="two takeovers",
    ),
    Planted(
        "no instance in the epoch: two takeovers own it",
        session.Session.__init__,
        "instance=host.token(32)",
        'instance="0" * 32',
        scene="two takeovers",
    ),
    Planted(
        "no nonce: a value of the pointer returns",
        fencing.Owner.swap,
        "host.token(32)",
        '"0" * 32',
        scene="two takeovers",
    ),
    Planted(
        "a swap before all that goes beside the manifest has landed",
        commit._write,
        "attempt.id, encoded)\n        await queue.join()",
        "attempt.id, encoded)",
        scene="two takeovers",
    ),
    Planted(
        "live by sequence, not by the ancestry",
        history.is_live,
        "if head.committed is not None and head.committed.id == checkpoint:",
        "if head.pointer is not None and head.pointer.boundary <= checkpoint.sequence <= head.sequence:\n"
        "        return (await find_manifest(store, checkpoint))[0]\n"
        "    if head.committed is not None and head.committed.id == checkpoint:",
        walk=103,
    ),
    Planted(
        "a catalog with the committed sequence",
        savepoints.replace_catalog,
        "session.draw_id(head.sequence)",
        "session.draw_id(head.sequence - 1)",
        scene="a savepoint beside a cleanup",
    ),
    Planted(
        "a catalog named after the checkpoint",
        savepoints.replace_catalog,
        "session.draw_id(head.sequence)",
        "head.committed.id",
        scene="a savepoint beside a cleanup",
    ),
    Planted(
        "retention retries its old plan",
        retire.retire_chosen,
        "live, gone = await choose(head)",
        "live, gone = planned.setdefault('', await choose(head))",
        scene="a savepoint of what stands in the catalog, beside a cleanup",
    ),
    Planted(
        "names shared between attempts",
        session.Session.draw_id,
        "self.host.token(8)",
        "self.owner.instance[-8:]",
        scene="two takeovers",
    ),
    Planted(
        "no read-back",
        compare_and_swap.swap_until_decided,
        "refused = undecided is None and isinstance(error, PreconditionFailedError)\n            undecided = error",
        "raise",
        scene="two takeovers",
    ),
    Planted(
        "a refused read-back taken for a failure",
        compare_and_swap.swap_until_decided,
        "except CorruptionError:",
        "except (CorruptionError, StoreRefusedError, StoreNotFoundError):",
        walk=243,
    ),
    Planted(
        "failure reported on an unchanged version",
        latest._swap,
        "raise _unknown(store, planned) from error.__cause__",
        "raise ConflictError('gave up') from error.__cause__",
        scene="two takeovers",
    ),
    Planted(
        "what another promoted taken as prepared still",
        commit._prepare,
        "if head.prepared == ref:\n            prepared.base",
        "if True:\n            prepared.base",
        scene="prepared and dropped here, promoted and built on there",
        long=True,
    ),
    Planted(
        "an abort that swaps only where there is something to clear",
        prepared.Prepared._abort,
        "cleared.add(pointer.nonce)",
        "if head.prepared is None:\n"
        "            cleared.add(head.pointer.nonce)\n"
        "            return None\n"
        "        cleared.add(pointer.nonce)",
        scene="a prepared checkpoint withdrawn",
    ),
    Planted(
        "retry without checking the parent",
        fencing.Owner.follows,
        "head.committed == base.head.committed and (head.writer == base.head.writer or self.owns(head))",
        "self.owns(head) or head.committed == base.head.committed and head.writer == base.head.writer",
    ),
    Planted(
        "takeover without checking what was restored",
        fencing.Owner.follows,
        "head.committed == base.head.committed and (head.writer == base.head.writer or self.owns(head))",
        "not self.owns(base.head) or head.committed == base.head.committed",
        scene="two takeovers",
    ),
    Planted(
        "an attempt of another writer's time goes on",
        fencing.Owner.follows,
        " and (head.writer == base.head.writer or self.owns(head))",
        "",
    ),
    Planted(
        "what was not found committed is not looked for",
        fencing.Owner.swap,
        "if await history.became_live(store, head, attempt):",
        "if False:",
        scene="overtaken without an answer",
    ),
    Planted(
        "below the history an attempt is called failed",
        history.became_live,
        "if oldest_ref.id.sequence <= attempt.id.sequence:",
        "if True:",
        scene="overtaken and forgotten without an answer",
    ),
    Planted(
        "a promotion of what is no longer prepared",
        prepared.Prepared._commit,
        "if head.prepared != self._ref:",
        "if False:",
    ),
    Planted(
        "savepoints deleted by name",
        savepoints.delete_savepoint,
        "entry.nonce != meant.nonce",
        "entry.name != name",
        scene="a savepoint deleted and made again",
    ),
    Planted(
        "savepoint deletion without a swap",
        savepoints.delete_savepoint,
        "await cas_loop(session.store, await read_head(session.store), plan_swap)",
        "from pyspark_checkpointer.manifests.manifest_json import encode_pointer\n"
        "    planned = await plan_swap(await read_head(session.store))\n"
        "    now = await read_head(session.store)\n"
        "    if planned is not None:\n"
        "        await session.store.compare_and_swap('_latest', encode_pointer(planned), now.version)",
        scene="a savepoint deleted and made again",
    ),
    Planted(
        "a savepoint of what was retired meanwhile",
        savepoints.savepoint,
        "elif await is_live(session.store, head, kept.id, session.links) != kept:",
        "elif False:",
        scene="a savepoint beside a cleanup",
    ),
    Planted(
        "savepoints take over",
        savepoints.replace_catalog,
        "return replace(head.pointer, ",
        "from pyspark_checkpointer.manifests.model import Writer\n"
        "    return replace(head.pointer, writer=Writer(head.writer.epoch + 1, session.owner.instance), ",
        scene="a savepoint beside a cleanup",
    ),
    Planted(
        "rollback not re-validated",
        rollback._rollback,
        "if await is_live(session.store, head, target.id, session.links) != target:",
        "if False:",
        scene="a rollback beside a cleanup",
    ),
    Planted(
        "another's prepared checkpoint is pushed aside",
        session.Session.refuse_prepared,
        "if prepared is not None:",
        "if False:",
        walk=63,
    ),
    Planted(
        "dedup against an older checkpoint",
        upload.Uploader.write,
        "if known is not None and (",
        "seen = globals().setdefault('_seen', {})\n"
        "    known = seen[self._store.url, slot.operator, digest] = (\n"
        "        known if known is not None and known.digest == digest\n"
        "        else seen.get((self._store.url, slot.operator, digest)))\n"
        "    if known is not None and (",
        walk=2127,
    ),
    NO_SEQUENCE_RULE,
    Planted(
        "a sweep with the sequence of another reading",
        garbage_collect.begin_plan,
        "GarbageClassifier(head.sequence, await index_live(session, head, decision, policy.grace))",
        "GarbageClassifier("
        "(await __import__('pyspark_checkpointer').checkpoint.latest.read_head(session.store)).sequence, "
        "await index_live(session, head, decision, policy.grace))",
    ),
    Planted(
        "a missing catalog taken as empty",
        metadata.read_catalog,
        "data = (await store.get(ref.path, limit=MAX_CATALOG)).data",
        "from pyspark_checkpointer.storage.base import ObjectNotFoundError\n"
        "    try:\n"
        "        data = (await store.get(ref.path, limit=MAX_CATALOG)).data\n"
        "    except ObjectNotFoundError:\n"
        "        return None",
        scene="a catalog replaced and swept under a cleanup",
        long=True,
    ),
    Planted(
        "what was retired lately is swept under its readers",
        reachability._add_retired,
        "if head.pointer is None or not head.pointer.retired:",
        "if True:",
        scene="a reader within the grace period",
    ),
    Planted(
        "whoever finds nothing does not look again",
        latest.refresh,
        "if now.version == head.version:",
        "if True:",
        walk=168,
    ),
    Planted(
        "a boundary that goes back",
        retire.pointer_without,
        "max(old.boundary, live.ancestry[run - 1].id.sequence)",
        "live.ancestry[run - 1].id.sequence - 1",
    ),
    Planted(
        "what a savepoint keeps is deleted",
        delete._plan,
        "if ref in live.savepoints:",
        "if False:",
        walk=434,
    ),
    Planted(
        "savepoints are retired with the rest",
        retire.decide_retention,
        "elif ref in live.savepoints:",
        "elif False:",
    ),
    Planted(
        "a savepoint of another checkpoint than was asked for",
        savepoints.savepoint,
        "kept = await resolve_live(session, head, wanted)",
        "kept = head.committed",
        scene="a savepoint beside a deletion",
    ),
    Planted(
        "a savepoint whose swap was refused keeps the newest",
        savepoints.savepoint,
        "elif await is_live(session.store, head, kept.id, session.links) != kept:",
        "elif (kept := head.committed) is None:",
        scene="a savepoint beside a commit",
    ),
    Planted(
        "a savepoint that is acknowledged and not made",
        savepoints.savepoint,
        "await cas_loop(session.store, await read_head(session.store), plan_swap)",
        "await plan_swap(await read_head(session.store))",
        scene="a savepoint beside a commit",
    ),
    Planted(
        "a savepoint whose deletion is acknowledged and not made",
        savepoints.delete_savepoint,
        "await cas_loop(session.store, await read_head(session.store), plan_swap)",
        "pass",
        scene="a savepoint made and another deleted",
    ),
    Planted(
        "a rollback to another checkpoint than was asked for",
        rollback._rollback,
        "read_live(session, head, to)",
        "read_live(session, head, CheckpointSelector('latest'))",
        scene="a rollback beside a commit",
    ),
    Planted(
        "operators that were not touched are lost",
        save.CheckpointAttempt.changed_operators,
        "operators, parent = dict(self._operators), self.base.manifest",
        "operators, parent = {name: one for name, one in self._operators.items() if name == 'log'}, self.base.manifest",
    ),
    Planted(
        "retention leaves fewer than it was told",
        policy.RetentionPolicy._rules,
        "index < self.keep_last",
        "index < 1",
    ),
    Planted(
        "whoever restores is told that nothing is there",
        restore._restore_latest,
        "return _go_on(session, *await read_consistent(session.store, read))",
        "return None, None",
    ),
)
