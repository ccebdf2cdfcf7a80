"""Migrate maps: they are saved on as deltas, and what a job saves meanwhile wins."""

import pytest

from tests.checkpoint.migrations import CHANGES, MAP, ROWS, old_job, restored, rows_of, write_rows
from tests.world import Actor, World


@pytest.fixture
def client(world: World) -> Actor:
    return old_job(world)


@pytest.mark.parametrize("early", [True, False])
def test_a_map_that_was_renamed_is_saved_on_as_deltas(world: World, client: Actor, early: bool) -> None:
    """It does not matter whether the map was restored before or after; nor for the table beside it."""
    state = restored(client).keyed("seen")
    migrated = restored(client, rename={"seen": "users", "rows": "totals"})
    state = state if early else migrated.keyed("users")
    known = world.objects("artifacts/")
    for value in (100, 200):
        with client.begin() as cp:
            state["user-5"]["n"] = value
            cp.save("users", state)
            write_rows(client, cp, {3: value}, "totals")
    new = world.objects("artifacts/") - known
    assert all(path.startswith(("artifacts/users/", "artifacts/totals/")) for path in new)
    assert {path.split(".")[1] for path in new if "/users/" in path} == {"delta"}
    found = restored(world.actor())
    assert found.keyed("users").to_dict() == MAP | {"user-1": {"n": 1}, "user-5": {"n": 200}}
    assert rows_of(found, "totals") == ROWS | {3: 330}


def test_what_is_saved_in_the_same_checkpoint_wins(world: World, client: Actor) -> None:
    found = restored(client, **CHANGES)
    users = found.keyed("users")
    users.update(dict.fromkeys(users, "mine"))
    with client.begin(8) as cp:
        cp.save("users", users)
        cp.delta("model", 0, b"+2")
        cp.snapshot("model", 3, b"mine")
        cp.drop("totals")
        cp.keep("model", 0)
    now = restored(world.actor())
    assert now.operators == ["model", "users"]
    assert now.keyed("users").to_dict() == dict.fromkeys(MAP, "mine")
    assert now.operator("model").read() == {0: [b"0:weights|+1", b"+2"], 3: [b"mine"]}
    assert (now.epoch, now.job) == (8, None)
    assert len(world.objects("artifacts/users/")) == 1, "what the checkpoint replaced was written too"
    users["user-3"] = "later"
    with client.begin(9) as cp:
        cp.save("users", users)
    assert restored(world.actor()).keyed("users")["user-3"] == "later"
    assert restored(world.actor()).keyed("users")["user-2"] == "mine"


def test_a_save_reuses_what_the_migration_made_where_it_is_the_same(world: World, client: Actor) -> None:
    users = restored(client, **CHANGES).keyed("users")
    users["user-2"] = "mine"
    with client.begin() as cp:
        cp.save("users", users)
    wanted = {key: value["n"] for key, value in MAP.items()} | {"user-2": "mine"}
    assert restored(world.actor()).keyed("users").to_dict() == wanted
    assert world.actor().verify()
    known = world.objects("artifacts/users/")
    users["user-2"] = "later"
    with client.begin() as cp:
        cp.save("users", users)
    (delta,) = world.objects("artifacts/users/") - known
    assert ".delta." in delta
    assert restored(world.actor()).keyed("users").to_dict() == wanted | {"user-2": "later"}
