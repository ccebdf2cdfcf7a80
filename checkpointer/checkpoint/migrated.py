"""Hold a migrated checkpoint until it is committed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Operator
from pyspark_checkpointer.storage.overlay import OverlayStore


def how_to_keep(operator: str) -> str:
    """Return the next steps for an operator whose content does not fit.

    First comes a step that keeps its state, then one that drops it.
    """
    old = f"{operator}-old"
    return (
        f"restore(rename={{{operator!r}: {old!r}}}) keeps its content under another name; or give the new state "
        "another name; drop() deletes it"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Migrated:
    """The operators as the migrated checkpoint has them.

    Transformed objects are in memory, above the store.
    """

    operators: Mapping[str, Operator]
    transformed: frozenset[str]
    store: OverlayStore

    def under(self, owner: CheckpointId) -> tuple[dict[str, Operator], dict[str, bytes]]:
        """Return the operators for an attempt to commit, and the objects to write.

        The objects carry the attempt's id.
        """
        # Everything that an attempt writes carries its own id. The id that the objects were made with was never used in
        # the store.
        paths = {path: object_paths.under(path, owner) for path in self.store.objects}
        operators = dict(self.operators)
        for name in self.transformed:
            chains = {
                partition: tuple(replace(artifact, path=paths[artifact.path]) for artifact in chain)
                for partition, chain in operators[name].chains.items()
            }
            operators[name] = replace(operators[name], chains=chains)
        return operators, {paths[path]: data for path, data in self.store.objects.items()}
