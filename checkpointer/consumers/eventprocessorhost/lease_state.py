"""Hold the knowledge of one host about the lease of one partition."""

from dataclasses import dataclass, replace

from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint_info import CheckpointInfo
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.manifests.positions_json import Row


@dataclass(slots=True, eq=False)
class LeaseState:
    """Hold the known state of a lease: its row when it was last seen, and the hold.

    seen ── hold_on ─> held ── let_go ─> released ── hold_on ─> held …
                        └── taken by another host, or again by this one ─> lost, for good
    """

    row: Row
    live: bool
    """True if the row was live when it was seen. It counts only without a hold."""
    hold: Lease | None = None
    """The underlying lease, from the acquisition to the release."""
    renewed_at: int = 0
    """When it was renewed last, in nanoseconds of the host's monotonic clock."""
    is_releasing: bool = False
    """True if giving the hold back failed: the row may still name this host."""
    accepted: CheckpointInfo | None = None
    """The last checkpoint that may wait to be written under the hold; None until one was compared with it."""

    @property
    def is_owned(self) -> bool:
        """Return whether its owner still held it when it was seen last."""
        return self.live if self.hold is None else not self.hold.lost

    @property
    def is_lost(self) -> bool:
        """Return whether it was held, and taken since."""
        return self.hold is not None and self.hold.lost

    def hold_on(self, hold: Lease, now: int) -> None:
        """Note that this host acquired it, with a request that began at `now`."""
        self.hold, self.renewed_at, self.is_releasing = hold, now, False
        self.row = replace(self.row, owner=hold.owner, epoch=hold.epoch)
        # Another host may have recorded checkpoints since the last hold, so the next comparison begins with what stood
        # there now.
        self.accepted = None

    def let_go(self) -> None:
        """Note that it was released."""
        self.hold, self.live, self.is_releasing = None, False, False
        self.row = replace(self.row, owner="")
