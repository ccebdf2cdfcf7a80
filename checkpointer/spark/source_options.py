"""Parse the options of the data source `checkpointer`.

They say what to read, and of which checkpoint.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import IllegalArgumentError, NotFoundError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.read import restore
from pyspark_checkpointer.storage import absolute, fix, fix_signing

STORE_VIEWS = ("checkpoints", "artifacts", "positions")
"""The views of a store."""

CHANGES = "changes"
"""The view that is a change feed of one table."""

OPTIONS = (
    "path",
    "operator",
    "view",
    "id",
    "epoch",
    "savepoint",
    "columns",
    "after",
    "to",
    "follower",
    "storage_options",
    "fencing",
    "encryption",
    "signing",
)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The options of a scan: the table or view, and its checkpoint."""

    root: str
    operator: str
    view: str | None
    checkpoint: str | None
    """The checkpoint to read, in the grammar of `Checkpointer.restore`; None for the last one."""
    columns: tuple[str, ...] | None
    after: str | None
    asked: str | None
    """`after` as it was given. `pin` replaces `after` by the id that it means now."""
    to: str | None
    follower: str | None
    storage_options: dict[str, Any] | None = field(repr=False)
    fencing: Any
    encryption: Any = field(repr=False)
    signing: Any = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "ReadRequest":
        given = {name.lower(): value for name, value in options.items()}
        if any(name.startswith("option.") for name in given):  # So a catalog keeps the options of a table.
            raise IllegalArgumentError(
                "CREATE TABLE … USING checkpointer: Spark does not hand the options of a table to a source written in "
                "Python; use CREATE OR REPLACE TEMP VIEW … USING checkpointer OPTIONS (…), which shows the "
                "checkpoint that is the latest one when the view is made"
            )
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise IllegalArgumentError(f"option {', '.join(unknown)}: is not known; there are {', '.join(OPTIONS)}")
        if "path" not in given:
            raise IllegalArgumentError("option path: say the root, as in load('s3://bucket/jobs/orders')")
        view, operator = given.get("view"), given.get("operator")
        # The changes are a view of one table, so they alone take both options.
        if view == CHANGES:
            _check_changes(given)
        elif misplaced := [name for name in ("after", "to", "follower") if name in given]:
            raise IllegalArgumentError(
                f"option {', '.join(misplaced)}: is for the changes of a table: view={CHANGES!r}"
            )
        elif (view is None) == (operator is None):
            raise IllegalArgumentError(
                f"option operator or view: {'there is neither' if view is None else 'there are both'}: say one table, "
                f"as in option('operator', 'totals'), or one of the views {', '.join(STORE_VIEWS)}, as in "
                "option('view', …)"
            )
        if view is not None and view not in (*STORE_VIEWS, CHANGES):
            raise IllegalArgumentError(f"view {view!r:.40}: there are {', '.join((*STORE_VIEWS, CHANGES))}")
        if view in STORE_VIEWS:
            # `checkpoints` shows all of them, and no view has columns to choose from.
            without = ("columns",) if view != "checkpoints" else ("columns", "id", "epoch", "savepoint")
            if ignored := [name for name in without if name in given]:
                raise IllegalArgumentError(
                    f"view {view!r}: option {', '.join(ignored)}: has no effect on it: filter or select the DataFrame"
                )
        columns = given.get("columns")
        try:
            storage = None if "storage_options" not in given else json.loads(given["storage_options"])
        except ValueError as error:  # It names a place in the text, and no part of it: options may be secret.
            raise IllegalArgumentError(f"option storage_options: expected JSON: {error}") from None
        return cls(
            # Spark plans and reads in processes of their own, which may have another working directory.
            root=absolute(given["path"]),
            operator=operator or "",
            view=view,
            checkpoint=_checkpoint(given),
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
            after=given.get("after"),
            asked=given.get("after"),
            to=given.get("to"),
            follower=given.get("follower"),
            storage_options=storage,
            fencing=given.get("fencing", "required"),
            encryption=fix(given.get("encryption")),
            signing=fix_signing(given.get("signing")),
        )

    def client(self) -> Checkpointer:
        return Checkpointer(
            self.root,
            self.storage_options,
            fencing=self.fencing,
            encryption=self.encryption,
            signing=self.signing,
        )

    def restore(self) -> Restored:
        return restore(self.client(), self.checkpoint)

    def pin(self) -> "ReadRequest":
        """Choose the checkpoint of a table, once for all scans.

        A view shows the store at the time it is read. The keys of an encrypted root are opened here, once for all
        tasks: a task may have no access to the provider of keys.
        """
        if self.encryption is not None:
            # Imported here: only an encrypted root needs the package for it.
            from pyspark_checkpointer.storage.encryption.root_keys import find_keys_of

            # A root without keys is left as it is: it may be a mistyped one, and reading writes nothing.
            keys = run_sync(find_keys_of(self.client().session.store))
            self = self if keys is None else replace(self, encryption=keys)
        if self.view == CHANGES:
            client = self.client()

            def id_of(end: str | None) -> str | None:
                return None if end is None else str(restore(client, end).id)

            after = self.after
            # A stream that goes on needs no `after`, and by then it may have been retired. Whoever needs it is refused.
            with suppress(NotFoundError):
                after = id_of(after)
            return replace(self, after=after, to=id_of(self.to))
        if self.view is not None:
            return self
        # By its id, because a savepoint of the same name could be another one later.
        return replace(self, checkpoint=str(self.restore().id))


def _checkpoint(given: Mapping[str, str]) -> str | None:
    """Return the checkpoint of the options, in the grammar of `Checkpointer.restore`.

    The options `epoch` and `savepoint` are two of its forms, and are written as these.
    """
    forms = {"id": "", "epoch": "epoch=", "savepoint": "savepoint="}
    named = [form + given[name] for name, form in forms.items() if name in given]
    if len(named) > 1:
        raise IllegalArgumentError(f"option id, epoch and savepoint: give one of them, not {' and '.join(named)}")
    if not named:
        return None
    CheckpointSelector.parse(named[0])  # What has no form of the grammar is refused before the store is opened.
    return named[0]


def _check_changes(given: Mapping[str, str]) -> None:
    """Raise `IllegalArgumentError` for options that a table's changes do not take."""
    if "operator" not in given:
        raise IllegalArgumentError(
            "view 'changes': option operator: say which table, as in option('operator', 'totals')"
        )
    if wrong := [name for name in ("id", "epoch", "savepoint", "columns") if name in given]:
        raise IllegalArgumentError(
            f"view 'changes': option {', '.join(wrong)}: the changes lie between two checkpoints: say after= and to=, "
            "in any form that Checkpointer.restore takes; select the columns of the DataFrame"
        )


__all__ = ["CHANGES", "ReadRequest"]
