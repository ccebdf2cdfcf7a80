"""The contract of a Kinesis record checkpointer, run on a plain model of it and on ours over every store."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyspark_checkpointer.consumers.kinesis import (
    SHARD_END,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    RecordCheckpointer,
    ShardLeases,
)
from pyspark_checkpointer.errors import IllegalArgumentError, ShutdownError
from tests.consumers.kinesis.kinesis_model import ModelCheckpointer, ModelShard

Checkpointer = RecordCheckpointer | ModelCheckpointer
Owner = Callable[[], Any]
"""Makes the next owner of the shard, which ends the one before."""

Workers = tuple[ShardLeases, ShardLeases]

BIG = "49590338271490256608559692538361571095921575989136588898"
BIGGER = "149590338271490256608559692538361571095921575989136588897"  # below it, if compared as text


def number(text: str, sub: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(text, sub)


def record(text: str, sub: int | None = None) -> dict[str, Any]:
    return {"SequenceNumber": text} if sub is None else {"SequenceNumber": text, "SubSequenceNumber": sub}


class Contract:
    """`owner()` takes the shard of the test, and `leases` are told what is delivered to an owner."""

    @pytest.fixture
    def one(self, owner: Owner, leases: Any) -> Any:
        """An owner that was handed records 5 to 10."""
        one = owner()
        leases.deliver(one, [record(str(n)) for n in range(5, 11)])
        return one

    # ---- the range -----------------------------------------------------------------------------------------------

    def test_a_shard_begins_at_the_initial_position(self, owner: Owner) -> None:
        one = owner()
        assert (one.position, one.seen, one.pending, one.pending_state) == (TRIM_HORIZON, TRIM_HORIZON, None, None)

    def test_the_last_record_delivered_is_checkpointed(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint()
        assert one.position == number("10")
        assert owner().position == number("10")

    def test_nothing_delivered_is_nothing_new(self, owner: Owner) -> None:
        owner().checkpoint()
        assert owner().position == TRIM_HORIZON

    def test_the_four_forms(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint_by_sequence_number("5")
        assert one.position == number("5")
        one.checkpoint_by_sequence_number_ex("6", 3)
        assert one.position == number("6", 3)
        one.checkpoint_by_record(record("7", 1))
        assert one.position == number("7", 1)
        one.checkpoint()
        assert owner().position == number("10")

    @pytest.mark.parametrize("text", ["6", "11", "SHARD_END", "0"])
    def test_out_of_range(self, one: Checkpointer, owner: Owner, text: str) -> None:
        one.checkpoint_by_sequence_number("7")
        for form in (one.checkpoint_by_sequence_number, one.prepare_checkpoint_by_sequence_number):
            with pytest.raises(IllegalArgumentError):
                form(text)
        assert one.position == number("7")
        assert one.pending is None

    def test_the_ends_of_the_range_are_in_it(self, one: Checkpointer) -> None:
        one.checkpoint_by_sequence_number("7")
        one.checkpoint_by_sequence_number("7")
        one.checkpoint_by_sequence_number("10")
        assert one.position == number("10")

    def test_sub_sequences_count(self, owner: Owner, leases: Any) -> None:
        one = owner()
        leases.deliver(one, [record("5", 0), record("5", 1), record("5", 2)])
        one.checkpoint_by_sequence_number_ex("5", 1)
        with pytest.raises(IllegalArgumentError):
            one.checkpoint_by_sequence_number("5")
        with pytest.raises(IllegalArgumentError):
            one.checkpoint_by_sequence_number_ex("5", 3)
        one.checkpoint()
        assert owner().position == number("5", 2)

    def test_numbers_are_not_compared_as_text(self, owner: Owner, leases: Any) -> None:
        one = owner()
        leases.deliver(one, [record(BIG), record(BIGGER)])
        one.checkpoint_by_sequence_number(BIG)
        one.checkpoint()
        assert one.position == number(BIGGER)
        with pytest.raises(IllegalArgumentError):
            one.checkpoint_by_sequence_number(BIG)

    def test_the_next_owner_starts_anew_from_the_checkpoint(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint_by_sequence_number("7")
        two = owner()
        assert two.seen == number("7")
        for text in ("6", "8"):
            with pytest.raises(IllegalArgumentError):
                two.checkpoint_by_sequence_number(text)
        two.checkpoint()
        assert two.position == number("7")

    @pytest.mark.parametrize("text", [None, "", "x", " 7", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "-7", 7])
    def test_what_is_no_number_of_a_record(self, one: Checkpointer, text: Any) -> None:
        for form in (one.checkpoint_by_sequence_number, one.prepare_checkpoint_by_sequence_number):
            with pytest.raises(IllegalArgumentError):
                form(text)

    @pytest.mark.parametrize("sub", [-1, None, "0"])
    def test_what_is_no_sub_sequence_number(self, one: Checkpointer, sub: Any) -> None:
        for form in (one.checkpoint_by_sequence_number_ex, one.prepare_checkpoint_by_sequence_number_ex):
            with pytest.raises(IllegalArgumentError):
                form("7", sub)

    def test_no_record(self, one: Checkpointer) -> None:
        for form in (one.checkpoint_by_record, one.prepare_checkpoint_by_record):
            with pytest.raises(IllegalArgumentError):
                form(None)

    # ---- prepared ------------------------------------------------------------------------------------------------

    def test_preparing_does_not_move_the_checkpoint(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint_by_sequence_number("5")
        prepared = one.prepare_checkpoint(application_state=b"\x00state")
        assert prepared.pending_checkpoint == number("10")
        assert one.position == number("5")
        two = owner()
        assert two.position == two.seen == number("5")
        assert two.pending.pending_checkpoint == number("10")
        assert two.pending_state == b"\x00state"

    def test_the_four_prepared_forms(self, one: Checkpointer, owner: Owner) -> None:
        prepared = [
            one.prepare_checkpoint_by_sequence_number("5"),
            one.prepare_checkpoint_by_sequence_number_ex("6", 3),
            one.prepare_checkpoint_by_record(record("7", 1), application_state=b""),
        ]
        assert one.pending_state == b""
        prepared.append(one.prepare_checkpoint())
        assert [str(each.pending_checkpoint) for each in prepared] == ["5", "6:3", "7:1", "10"]
        assert one.pending is not None
        assert one.pending.pending_checkpoint == number("10")
        assert one.position == TRIM_HORIZON
        prepared[-1].checkpoint()
        assert owner().position == number("10")

    @pytest.mark.parametrize("text", ["6", "8", "9"])
    def test_any_checkpoint_ends_what_is_pending(self, one: Checkpointer, owner: Owner, text: str) -> None:
        one.prepare_checkpoint_by_sequence_number("8", application_state=b"state")
        one.checkpoint_by_sequence_number(text)
        two = owner()
        assert (two.position, two.pending, two.pending_state) == (number(text), None, None)

    def test_an_equal_checkpoint_ends_what_is_pending_too(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint_by_sequence_number("7")
        one.prepare_checkpoint()
        one.checkpoint_by_sequence_number("7")
        assert owner().pending is None

    def test_preparing_again_replaces(self, one: Checkpointer, owner: Owner) -> None:
        one.prepare_checkpoint_by_sequence_number("8", application_state=b"state")
        one.prepare_checkpoint_by_sequence_number("7")
        two = owner()
        assert two.pending.pending_checkpoint == number("7")
        assert two.pending_state is None

    def test_redeeming_twice_is_once(self, one: Checkpointer, owner: Owner) -> None:
        prepared = one.prepare_checkpoint()
        prepared.checkpoint()
        prepared.checkpoint()
        two = owner()
        assert (two.position, two.pending) == (number("10"), None)

    def test_redeemed_late_it_is_checked_again(self, one: Checkpointer, owner: Owner) -> None:
        prepared = one.prepare_checkpoint_by_sequence_number("7")
        one.checkpoint_by_sequence_number("8")
        with pytest.raises(IllegalArgumentError):
            prepared.checkpoint()
        assert owner().position == number("8")

    def test_redeemed_late_but_above_it_is_a_checkpoint(self, one: Checkpointer, owner: Owner) -> None:
        prepared = one.prepare_checkpoint_by_sequence_number("8")
        one.checkpoint_by_sequence_number("7")
        assert one.pending is None
        prepared.checkpoint()
        assert owner().position == number("8")

    def test_prepared_checkpoints_are_redeemed_in_their_order(self, one: Checkpointer, owner: Owner) -> None:
        first = one.prepare_checkpoint_by_sequence_number("7")
        second = one.prepare_checkpoint_by_sequence_number("8")
        first.checkpoint()
        assert (one.position, one.pending) == (number("7"), None)
        second.checkpoint()
        two = owner()
        assert (two.position, two.pending) == (number("8"), None)

    def test_what_was_prepared_first_is_refused_after_what_was_prepared_since(self, one: Checkpointer) -> None:
        first = one.prepare_checkpoint_by_sequence_number("7")
        one.prepare_checkpoint_by_sequence_number("8").checkpoint()
        with pytest.raises(IllegalArgumentError):
            first.checkpoint()
        assert one.position == number("8")

    def test_what_is_checkpointed_needs_no_preparing(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint_by_sequence_number("7")
        prepared = one.prepare_checkpoint_by_sequence_number("7")
        assert prepared.pending_checkpoint == number("7")
        prepared.checkpoint()
        two = owner()
        assert (two.position, two.pending) == (number("7"), None)
        two.prepare_checkpoint(application_state=b"state")
        assert owner().pending_state == b"state"

    def test_the_next_owner_can_commit_what_is_pending(self, one: Checkpointer, owner: Owner) -> None:
        one.prepare_checkpoint_by_sequence_number("8")
        two = owner()
        two.pending.checkpoint()
        assert (two.position, two.seen, two.pending) == (number("8"), number("8"), None)
        assert owner().position == number("8")

    def test_the_next_owner_can_commit_it_by_its_number(self, one: Checkpointer, owner: Owner) -> None:
        one.prepare_checkpoint_by_sequence_number_ex("8", 2)
        two = owner()
        for text in ("7", "8", "9"):  # seen by its predecessor only
            with pytest.raises(IllegalArgumentError):
                two.checkpoint_by_sequence_number(text)
        two.checkpoint_by_sequence_number_ex("8", 2)
        assert owner().position == number("8", 2)

    def test_the_next_owner_can_give_it_up(self, one: Checkpointer, owner: Owner) -> None:
        one.checkpoint_by_sequence_number("7")
        one.prepare_checkpoint_by_sequence_number("8")
        two = owner()
        pending = two.pending
        two.checkpoint_by_sequence_number("7")
        assert (two.position, two.pending) == (number("7"), None)
        with pytest.raises(IllegalArgumentError):
            pending.checkpoint()

    @pytest.mark.parametrize("before", ["none", "7"])
    def test_a_checkpoint_of_nothing_leaves_it(self, one: Checkpointer, owner: Owner, leases: Any, before: str) -> None:
        """An owner that is stopped before records came must not end what another has to find."""
        if before != "none":
            one.checkpoint_by_sequence_number(before)
        one.prepare_checkpoint_by_sequence_number("8", application_state=b"state")
        two = owner()
        leases.deliver(two, [])
        two.checkpoint()
        assert owner().pending_state == b"state"

    # ---- the end of a shard --------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "form",
        [
            lambda one: one.checkpoint(),
            lambda one: one.checkpoint_by_sequence_number("10"),
            lambda one: one.checkpoint_by_sequence_number("SHARD_END"),
            lambda one: one.checkpoint_by_record(record("10")),
            lambda one: one.prepare_checkpoint().checkpoint(),
            lambda one: one.prepare_checkpoint_by_sequence_number("10").checkpoint(),
        ],
    )
    @pytest.mark.parametrize("before", ["9", "10"])
    def test_the_end_is_recorded(
        self, one: Checkpointer, owner: Owner, leases: Any, form: Callable[[Any], None], before: str
    ) -> None:
        one.checkpoint_by_sequence_number(before)
        leases.end(one)
        assert one.position == number(before)
        form(one)
        form(one)
        assert one.position == SHARD_END
        assert owner().position == SHARD_END

    def test_the_end_may_come_with_no_record(self, owner: Owner, leases: Any) -> None:
        one = owner()
        leases.end(one)
        one.checkpoint()
        assert owner().position == SHARD_END

    def test_records_before_the_last_are_not_the_end(self, one: Checkpointer, owner: Owner, leases: Any) -> None:
        leases.end(one)
        one.checkpoint_by_sequence_number("9")
        assert owner().position == number("9")

    @pytest.mark.parametrize("text", ["11", "99999999999999999999"])
    def test_the_end_permits_no_number_above_the_last_record(
        self, one: Checkpointer, owner: Owner, leases: Any, text: str
    ) -> None:
        leases.end(one)
        for form in (one.checkpoint_by_sequence_number, one.prepare_checkpoint_by_sequence_number):
            with pytest.raises(IllegalArgumentError):
                form(text)
        with pytest.raises(IllegalArgumentError):
            one.checkpoint_by_sequence_number_ex("10", 1)
        assert (one.position, one.pending) == (TRIM_HORIZON, None)
        one.checkpoint_by_sequence_number("10")
        assert owner().position == SHARD_END

    def test_the_end_permits_what_an_earlier_owner_prepared(self, one: Checkpointer, owner: Owner, leases: Any) -> None:
        one.prepare_checkpoint_by_sequence_number("8")
        two = owner()
        leases.end(two)
        for _ in range(2):
            two.checkpoint_by_sequence_number("8")
        with pytest.raises(IllegalArgumentError):
            two.checkpoint_by_sequence_number("9")
        two.checkpoint()
        assert owner().position == SHARD_END

    @pytest.mark.parametrize("name", ["SHARD_END", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
    def test_a_name_has_no_sub_sequence_numbers(self, one: Checkpointer, leases: Any, name: str) -> None:
        leases.end(one)
        for form in (one.checkpoint_by_sequence_number_ex, one.prepare_checkpoint_by_sequence_number_ex):
            with pytest.raises(IllegalArgumentError):
                form(name, 42)
        assert one.position == TRIM_HORIZON

    def test_nothing_follows_the_end(self, one: Checkpointer, leases: Any) -> None:
        leases.end(one)
        one.checkpoint()
        with pytest.raises(IllegalArgumentError):
            one.checkpoint_by_sequence_number("9")

    def test_what_was_prepared_before_the_end_is_the_end(self, one: Checkpointer, owner: Owner, leases: Any) -> None:
        prepared = one.prepare_checkpoint()
        leases.end(one)
        prepared.checkpoint()
        assert owner().position == SHARD_END

    def test_a_pending_end_is_handed_over(self, one: Checkpointer, owner: Owner, leases: Any) -> None:
        leases.end(one)
        one.prepare_checkpoint()
        two = owner()
        assert two.pending.pending_checkpoint == SHARD_END
        two.pending.checkpoint()
        assert owner().position == SHARD_END

    # ---- fencing -------------------------------------------------------------------------------------------------

    def test_an_owner_before_can_do_nothing(self, one: Checkpointer, owner: Owner) -> None:
        prepared = one.prepare_checkpoint()
        two = owner()
        for verb in (
            one.checkpoint,
            one.prepare_checkpoint,
            one.flush,
            prepared.checkpoint,
            lambda: one.checkpoint_by_sequence_number("7"),
            lambda: one.prepare_checkpoint_by_record(record("7")),
        ):
            with pytest.raises(ShutdownError) as caught:
                verb()
            assert not caught.value.retryable
        assert two.position == TRIM_HORIZON
        assert owner().pending is not None


class TestModel(Contract):
    @pytest.fixture
    def leases(self) -> ModelShard:
        return ModelShard()

    @pytest.fixture
    def owner(self, leases: ModelShard) -> Owner:
        return leases.take


@pytest.fixture(scope="module", params=["memory", "local", "s3", "azure"])
def workers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Two workers of one application, on a root of each kind."""
    url, options = f"memory://{uuid.uuid4().hex}", {}
    if request.param == "local":
        url = str(tmp_path_factory.mktemp("root"))
    elif request.param != "memory":
        server = request.getfixturevalue(f"{request.param}_server")
        url, options = f"{server.url}/{uuid.uuid4().hex}", server.storage_options
    with ShardLeases(url, "app", storage_options=options) as one, ShardLeases(url, "app", "two", options) as two:
        yield one, two


class TestOurs(Contract):
    @pytest.fixture
    def leases(self, workers: Workers) -> ShardLeases:
        return workers[0]

    @pytest.fixture
    def owner(self, workers: Workers) -> Owner:
        shard = uuid.uuid4().hex
        workers[0].create([shard])
        # The third owner has the shard already: taking it again fences too.
        order = itertools.chain(workers, itertools.repeat(workers[1]))

        def take() -> RecordCheckpointer:
            checkpointer = next(order).take(shard, force=True)
            assert checkpointer is not None
            return checkpointer

        return take
