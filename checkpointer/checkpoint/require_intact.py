"""Refuse a checkpoint with damage before it becomes the state of a job."""

from pyspark_checkpointer.checkpoint.history import is_live
from pyspark_checkpointer.checkpoint.latest import read_consistent
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.verify import Verifier
from pyspark_checkpointer.errors import CorruptionError, RetiredError
from pyspark_checkpointer.manifests.model import Manifest, Ref
from pyspark_checkpointer.runtime.host import Progress

SHOWN = 3
"""Damaged objects that an error names."""


async def refuse_damaged(session: Session, ref: Ref, manifest: Manifest, progress: Progress | None = None) -> None:
    """Raise `CorruptionError` unless every object of a checkpoint is intact.

    An intact object is as it was written. `manifest` was verified and has its chains. Each object is read once: one
    request for each. `progress` is told bytes. Raises `RetiredError` where an object is gone because the checkpoint was
    retired meanwhile.
    """
    verifier = Verifier(session, None, 1.0, progress)
    verifier.manifests = {ref: manifest}
    await verifier.read_objects()
    if not verifier.findings:
        return
    if verifier.refusals:  # a right that is missing is no damage: nothing was seen
        raise verifier.refusals[0]
    url = session.store.url
    if any(found.missing for found in verifier.findings):
        # Asked only now, because a checkpoint can be retired while its objects are read, which takes long.
        now = await read_consistent(session.store, lambda head: is_live(session.store, head, ref.id, session.links))
        if now is None:
            raise RetiredError(f"{url}: {ref.id} was retired meanwhile: choose another")
    problems = "; ".join(found.problem for found in verifier.findings[:SHOWN])
    more = f"; and {len(verifier.findings) - SHOWN} objects more" if len(verifier.findings) > SHOWN else ""
    raise CorruptionError(
        f"{url}: {ref.id} is damaged, so it did not become the state again, and nothing was changed: {problems}{more}. "
        "Choose a checkpoint that is whole: verify(), or `checkpointer verify`, names the damaged ones. If no "
        "intact one is recent enough, "
        f'repair_plan("{ref.id}"), or `checkpointer repair ROOT --to {ref.id}`, lists what can be kept of this one'
    )
