"""What became of a root whose users were killed: put to order as the next run would, judged, and counted."""

from collections import Counter
from pathlib import Path

from tests.proof.checker import Checker
from tests.proof.histories import gather
from tests.proof.kills import writers
from tests.proof.kills.ledger import ADDED, Told, compare, read
from tests.proof.kills.lives import Slot
from tests.proof.kills.writers import Place
from tests.servers import Server

Figures = Counter[str]


def new_place(folder: Path, server: Server | None, *, empty: bool = False) -> Place:
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    place = Place(f"{server.url}/{folder.name}", server.storage_options, ledgers) if server else None
    place = place or Place(str(folder / "root"), {}, ledgers)
    if not empty:
        writers.begin(place)
    return place


def told(place: Place) -> list[Told]:
    return [line for path in sorted(place.ledgers.glob("*.jsonl")) for line in read(path)]


def acknowledged(place: Place) -> int:
    return sum(line.kind == ADDED for line in told(place))


def count(figures: Figures, area: str, place: Place, slots: list[Slot]) -> list[str]:
    """After all have stopped, go on as the next run would, and count. Returns the tokens of the state."""
    with place.open() as client:
        last = writers.Asking(client, place.diary("last"), "last")
        restored, found = last.restore()
        if restored.prepared is not None:
            with last.asks("promote", id=str(restored.prepared.id)):
                restored.prepared.commit()
            restored, found = last.restore()
        with client.begin() as cp:
            cp.keep("tokens")
    figures[f"{area}: kills"] += sum(slot.kills for slot in slots)
    if checker := Checker.find():
        verdict = checker.judge(gather(place.ledgers.glob("*.history")))
        assert verdict.is_linearizable, verdict
        figures[f"{area}: operations judged by porcupine"] += verdict.operations
        figures[f"{area}: of which of unknown outcome"] += verdict.open
    judge_all(figures, area, place, found, sum(slot.needed_a_hand for slot in slots))
    return found


def judge_all(figures: Figures, area: str, place: Place, found: list[str], needed_a_hand: int) -> None:
    """Compare what was told with what was found, and count it."""
    everything = told(place)
    verdict = compare(everything, found)
    figures[f"{area}: acknowledged commits"] += verdict.acknowledged
    figures[f"{area}: commits refused"] += verdict.refused
    figures[f"{area}: lost"] += len(verdict.lost)
    figures[f"{area}: doubled"] += len(verdict.doubled)
    figures[f"{area}: restarts that needed a hand"] += needed_a_hand
    assert verdict.broken == []
    assert needed_a_hand == 0, [line.note for line in everything if line.kind == "died"]
    with place.open() as client:
        assert client.verify().findings == ()
    assert verdict.acknowledged > 0
