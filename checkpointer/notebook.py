"""A checkpointer as notebooks show it."""

import asyncio

from checkpointer.overview import read_overview
from checkpointer.runtime import run_sync
from checkpointer.session import Session
from manifests.measures import checkpoint_bytes
from manifests.notebook import note, table
from manifests.words import age, moment, size

SECONDS = 10
"""How long a notebook waits for a store that may not answer at all."""

_MOST = 20

_TITLES = ("id", "epoch", "created", "age", "state", "size", "operators", "savepoints")


def checkpoints_html(session: Session, name: str) -> str:
    """The newest checkpoints of a root under `name`. Never raises: what is wrong is shown instead."""
    try:
        checkpoints = run_sync(asyncio.wait_for(read_overview(session), SECONDS)).checkpoints
    except TimeoutError:
        return note(f"{name}: the store did not answer within {SECONDS} seconds")
    except Exception as error:
        return note(f"{name}: {type(error).__name__}: {error}")
    if not checkpoints:
        return note(f"{name}: nothing is committed yet")
    now = session.host.now()
    rows = [
        (
            listed.ref.id,
            listed.manifest.epoch,
            moment(listed.manifest.created),
            age(listed.manifest.created, now),
            listed.state,
            size(sizes[0] if (sizes := checkpoint_bytes(listed.manifest)) else None),
            len(listed.manifest.operators),
            ", ".join(listed.savepoints),
        )
        for listed in reversed(checkpoints[-_MOST:])
    ]
    more = f": the newest {_MOST} of {len(checkpoints)} checkpoints" if len(checkpoints) > _MOST else ""
    return table(f"{name}{more}", _TITLES, rows)
