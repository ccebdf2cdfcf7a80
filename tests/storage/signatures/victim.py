"""A signed root that tests attack."""

import copy
import shutil
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.consumers.kinesis import ShardLeases
from pyspark_checkpointer.manifests.signatures_json import Signers
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store
from tests.signing_keys import make_keys
from tests.storage.conftest import Place, copy_objects

NAMES = ("owner", "driver", "cleaner", "host", "stranger")


class Victim:
    """A signed root with three commits of the driver, a savepoint of the cleaner, and the positions of a host."""

    def __init__(self, place: Place, keys: Path, encryption: str | None = None) -> None:
        self.place, self.keys, self.encryption = place, keys, encryption
        make_keys(*(keys / f"{name}.pem" for name in NAMES))
        below = open_store(place.url, place.storage_options, fencing="none", encryption=encryption)
        self.raw: Store = below
        """The root as an attacker sees it who has the key that encrypts, if there is one."""
        plain = Checkpointer(place.url, place.storage_options, encryption=encryption)
        allow = {self.public("driver"): "commit", self.public("cleaner"): "clean", self.public("host"): "consume"}
        plain.change_signers(self.private("owner"), allow=allow)
        self.states: list[dict[str, int]] = []
        self.driver = self.client("driver")
        for number in range(3):
            self.commit(self.driver, number)
        self.client("cleaner").savepoint("kept")
        with self.leases("host") as leases:
            leases.create(["shard-1"])

    def copied_to(self, place: Place, keys: Path) -> "Victim":
        """Return the same root at another place. To copy its objects takes fewer requests than to commit them."""
        made = copy.copy(self)
        made.place, made.keys, made.states = place, keys, [*self.states]
        for path in self.keys.iterdir():
            shutil.copy(path, keys)
        made.raw = open_store(place.url, place.storage_options, fencing="none")
        copy_objects(self.raw, made.raw)
        made.driver = made.client("driver")
        made.driver.restore()
        return made

    def private(self, name: str) -> str:
        return str(self.keys / f"{name}.pem")

    def public(self, name: str) -> str:
        return str(self.keys / f"{name}.pub")

    def signing(self, signer: str | None, owner: str = "owner", more: str = "") -> str:
        return f"trust:{self.public(owner)}{'' if signer is None else f',sign:{self.private(signer)}'}{more}"

    def client(self, signer: str | None = None, **given: Any) -> Checkpointer:
        place = self.place
        signing = self.signing(signer, **given)
        return Checkpointer(place.url, place.storage_options, encryption=self.encryption, signing=signing)

    def leases(self, signer: str) -> ShardLeases:
        place, signing = self.place, self.signing(signer)
        return ShardLeases(place.url, "app", "me", place.storage_options, encryption=self.encryption, signing=signing)

    def commit(self, client: Checkpointer, number: int) -> None:
        with client.begin(epoch=number) as cp:
            cp.save("totals", KeyedState({"n": number}))
        self.states.append({"n": number})

    def state(self, client: Checkpointer | None = None) -> dict[str, int]:
        restored = (client or self.client()).restore()
        assert restored is not None
        return restored.keyed("totals").to_dict()

    def objects(self) -> dict[str, bytes]:
        return {entry.path: run_sync(self.raw.get(entry.path)).data for entry in run_sync(self.raw.list(""))}

    def write(self, path: str, data: bytes) -> None:
        run_sync(self.raw.delete([path]))
        run_sync(self.raw.put(path, data))

    def put_back(self, objects: dict[str, bytes]) -> None:
        """Make the root what it was."""
        now = self.objects()
        run_sync(self.raw.delete(list(now)))
        for path, data in objects.items():
            self.write(path, data)

    def read(self, path: str) -> bytes:
        return run_sync(self.raw.get(path)).data

    def change(self, **given: Any) -> Signers:
        return self.client().change_signers(self.private("owner"), **given)
