"""Volumes of Databricks: conditions, lost answers, directories, and servers that break them."""

import asyncio
import io
import itertools
import pickle
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import (
    DependencyError,
    IllegalArgumentError,
    StoreNotFoundError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import (
    ListedObject,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    open_store,
)
from pyspark_checkpointer.storage.base import is_empty
from pyspark_checkpointer.storage.compare_and_swap import swap_until_decided
from pyspark_checkpointer.storage.conditional_write_check import probe
from tests.programs import run_python
from tests.storage.conftest import Place
from tests.storage.fake import Answer, gives, hangs_up, refuses, serves, serving
from tests.storage.test_faults import CALLS, once
from tests.volumes_server import VOLUME, Handler, VolumesServer, volumes

MIB = 1 << 20
ROOT = f"dbfs:{VOLUME}/jobs/orders"
FILES = "/api/3.0/fs/files/Volumes/main/default/checkpoints"
NO_FILE = refuses(404, "NOT_FOUND", "The file being accessed is not found.")


@pytest.fixture
def server() -> Iterator[VolumesServer]:
    with volumes() as running:
        yield running


def place_on(server: VolumesServer, **options: str) -> Place:
    return Place("databricks", ROOT, {"endpoint_url": server.address, "token": server.issue(), **options})


def written(etag: str | None = '"7"') -> Answer:
    return gives(200, {}, **({} if etag is None else {"ETag": etag}))


def contents(data: bytes, etag: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("ETag", etag)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def without_an_answer(handler: Handler) -> bool:
    """Do what is asked, and close the connection in place of an answer."""
    answer, handler.wfile = handler.wfile, io.BytesIO()
    handler.serve()
    handler.wfile = answer
    handler.close_connection = True
    return True


# --- conditions ---


def test_conditions_are_etags() -> None:
    seen: list[tuple[str | None, str | None]] = []

    def noting(handler: BaseHTTPRequestHandler) -> None:
        seen.append((handler.headers.get("If-Match"), handler.headers.get("If-None-Match")))
        written()(handler)

    with serving(noting) as fake:
        place = fake.place("databricks")
        store, unfenced = once(place), once(place, fencing="none")
        assert run_sync(store.compare_and_swap("x", b"1", None)) == '"7"'
        assert run_sync(store.compare_and_swap("x", b"1", '"6"')) == '"7"'
        run_sync(store.put("x", b"1"))
        run_sync(unfenced.put("x", b"1"))
    assert seen == [(None, "*"), ('"6"', None), (None, "*"), (None, None)]
    assert set(fake.requests) == {f"PUT {FILES}/root/x"}


@pytest.mark.parametrize("version", ["*", "", "  ", '"1", "2"', '"1",*', "1,2", '"1"\r\nX: y'])
def test_what_is_not_one_etag_is_the_version_of_nothing(version: str) -> None:
    """A star would be the condition that there is any object, and a list would take several versions."""
    with serving(written()) as fake, pytest.raises(PreconditionFailedError, match="x: was changed by somebody else"):
        run_sync(once(fake.place("databricks")).compare_and_swap("x", b"1", version))
    assert fake.requests == []


@pytest.mark.parametrize("tag", ['"{}"', "{}", '"0x{}=="'])
def test_etags_are_kept_as_the_service_gives_them(server: VolumesServer, tag: str) -> None:
    server.tag = tag
    store = place_on(server).open()
    run_sync(probe(store))
    version = run_sync(store.compare_and_swap("x", b"1", None))
    assert version == run_sync(store.get("x")).tag == server.ask("select etag from files")[0][0]


@pytest.mark.parametrize("status", [404, 409, 412])
def test_a_stale_version_is_refused_whatever_the_status(server: VolumesServer, status: int) -> None:
    """The manual says 412, and nothing of a version of a missing file."""

    def answer(handler: Handler) -> bool:
        if handler.command != "PUT" or handler.holds(f"{VOLUME}/jobs/orders/x"):
            return False
        code = {404: "NOT_FOUND", 409: "ALREADY_EXISTS"}.get(status, "PRECONDITION_FAILED")
        handler.refuse(status, code, "as the test says")
        return True

    server.meddle = answer
    store = once(place_on(server))
    with pytest.raises(PreconditionFailedError):
        run_sync(store.compare_and_swap("x", b"2", '"1"'))
    if status != 404:
        run_sync(store.put("x", b"1"))
        with pytest.raises(ObjectExistsError):
            run_sync(store.put("x", b"2"))
        with pytest.raises(PreconditionFailedError):
            run_sync(store.compare_and_swap("x", b"2", None))
    assert not any("directories" in request for request in server.requests)


# --- servers that keep no conditions ---


@pytest.mark.parametrize(
    ("wrong", "value", "said"),
    [
        ("ignores_conditions", True, "it created an object that exists"),
        ("compares_first", True, "let several writers win in"),
        ("tag", 'W/"{}"', "refused a swap on the version that it had just given"),
    ],
)
def test_a_server_that_keeps_no_conditions_is_refused_by_name(
    server: VolumesServer, wrong: str, value: object, said: str
) -> None:
    setattr(server, wrong, value)
    place = place_on(server)
    with (
        Checkpointer(place.url, place.storage_options) as client,
        pytest.raises(StoreRefusedError, match=rf"{ROOT}: this store does not keep conditions.*{said}"),
        client.begin(epoch=0) as attempt,
    ):
        attempt.snapshot("op", 0, b"1")
    setattr(server, wrong, '"{}"' if wrong == "tag" else False)
    assert run_sync(place.open().list("_")) == []


def test_the_longer_contest_of_doctor_finds_a_server_that_is_rarely_wrong(server: VolumesServer) -> None:
    from pyspark_checkpointer.admin.doctor import examine
    from pyspark_checkpointer.runtime.host import SystemHost

    place, asked = place_on(server), itertools.count()

    def sometimes(handler: Handler) -> bool:
        server.compares_first = handler.command == "PUT" and next(asked) > 300
        return False

    async def diagnose() -> Any:
        return await examine(place.open(), [place.open() for _ in range(8)], SystemHost(), rounds=60)

    honest = run_sync(diagnose())
    assert honest.fenced_by == "conditions on ETags (If-Match, If-None-Match)"
    assert [check for check in honest.checks if check.outcome == "bad"] == []
    server.meddle = sometimes
    wrong = run_sync(diagnose())
    assert any("let several writers win" in check.found for check in wrong.checks if check.outcome == "bad")


# --- answers that are lost ---


@pytest.mark.parametrize("call", CALLS)
def test_a_request_that_lost_its_answer_was_one_request(call: str) -> None:
    """Not even on a connection that was open before: aiohttp would send all of these again but POST."""
    with serving(contents(b"0", '"6"'), hangs_up) as fake:
        store = once(fake.place("databricks"))
        run_sync(store.get("x"))
        with pytest.raises(DependencyError):
            run_sync(CALLS[call](store))
    assert len(fake.requests) == 2


def test_a_put_that_took_effect_unseen_is_no_conflict(server: VolumesServer) -> None:
    first = iter([without_an_answer])
    server.meddle = lambda handler: handler.command == "PUT" and next(first, lambda _: False)(handler)
    store = place_on(server).open()
    run_sync(store.put("x", b"mine"))
    assert run_sync(store.get("x")).data == b"mine"
    with pytest.raises(ObjectExistsError):
        run_sync(store.put("x", b"other"))


def test_a_swap_that_took_effect_unseen_is_found_by_reading_back(server: VolumesServer) -> None:
    store = place_on(server).open()
    version = run_sync(store.compare_and_swap("x", b"old", None))
    first = iter([without_an_answer])
    server.meddle = lambda handler: handler.command == "PUT" and next(first, lambda _: False)(handler)
    server.requests.clear()
    found = run_sync(swap_until_decided(store, "x", b"mine", version, MIB))
    assert found is not None
    assert (found.data, found.tag) == (b"mine", server.ask("select etag from files")[0][0])
    assert [request.partition(" ")[0] for request in server.requests] == ["PUT", "GET"]


@pytest.mark.parametrize("answer", [hangs_up, written(None), gives(502, {}), gives(500, "<html>")])
def test_a_swap_without_a_clear_answer_is_read_back(answer: Answer) -> None:
    with serving(answer, contents(b"mine", '"7"')) as fake:
        found = run_sync(swap_until_decided(fake.place("databricks").open(), "x", b"mine", '"6"', MIB))
    assert found is not None
    assert (found.data, found.tag) == (b"mine", '"7"')


@pytest.mark.parametrize("every", [3, 5])
def test_commits_over_a_server_that_throttles_and_drops_answers(server: VolumesServer, every: int) -> None:
    """Each request of a kind fails now and then: refused with 429 or 503, or done and not answered."""
    numbers = itertools.count()

    def breaks(handler: Handler) -> bool:
        number = next(numbers)
        if number % every:
            return False
        if number % (3 * every) == 0:
            return without_an_answer(handler)
        status = 429 if number % (2 * every) else 503
        handler.refuse(status, "REQUEST_LIMIT_EXCEEDED", "slower, please", **{"Retry-After": "0"})
        return True

    place = place_on(server)
    with Checkpointer(place.url, place.storage_options) as client:
        with client.begin(epoch=0) as attempt:
            attempt.snapshot("op", 0, b"0")
        server.meddle = breaks
        for epoch in range(1, 6):
            with client.begin(epoch=epoch) as attempt:
                attempt.snapshot("op", 0, b"%d" % epoch)
        server.meddle = lambda _: False
        restored = client.restore()
        assert restored is not None
        assert (restored.epoch, restored.operator("op").partition(0)) == (5, [b"5"])
        assert len(client.list_checkpoints()) == 6


def test_the_pause_that_the_service_asks_for_is_kept() -> None:
    busy = gives(429, {"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "busy"}, **{"Retry-After": "1"})
    with serving(busy, written()) as fake:
        started = time.monotonic()
        run_sync(fake.place("databricks").open().put("x", b"1"))
        assert time.monotonic() - started >= 1
    with serving(busy) as fake, pytest.raises(ThrottlingError, match="429 REQUEST_LIMIT_EXCEEDED: busy"):
        run_sync(once(fake.place("databricks")).get("x"))


# --- directories ---


def test_a_directory_that_the_service_does_not_make_is_made(server: VolumesServer) -> None:
    server.makes_directories = False
    store = place_on(server).open()
    run_sync(store.put("artifacts/a b/0/x", b"1"))
    run_sync(store.compare_and_swap("_latest", b"1", None))
    assert [entry.path for entry in run_sync(store.list(""))] == ["_latest", "artifacts/a b/0/x"]
    made = [request for request in server.requests if "/directories/" in request and request.startswith("PUT")]
    assert made == ["PUT /api/3.0/fs/directories/Volumes/main/default/checkpoints/jobs/orders/artifacts/a%20b/0"]


@pytest.mark.parametrize("call", ["put", "create"])
def test_a_directory_that_others_made_meanwhile_is_no_file(call: str) -> None:
    """Its refusal must not be taken for the object that was to be written."""
    with (
        serving(NO_FILE, refuses(409, "ALREADY_EXISTS", "The directory exists.")) as fake,
        pytest.raises(DependencyError, match="The directory exists"),
    ):
        run_sync(CALLS[call](once(fake.place("databricks"))))


@pytest.mark.parametrize("call", ["put", "create"])
def test_a_file_that_has_no_place_is_no_missing_object(call: str) -> None:
    with serving(NO_FILE, gives(200, {}), NO_FILE) as fake, pytest.raises(StoreNotFoundError, match="no directory"):
        run_sync(CALLS[call](once(fake.place("databricks"))))


def test_listings_and_folders_go_on_to_the_last_page(server: VolumesServer) -> None:
    store = place_on(server).open()
    paths = sorted(f"a/{number % 5}/{number:03}" for number in range(60))

    async def put_all() -> None:
        await asyncio.gather(*(store.put(path, b"123") for path in paths))

    run_sync(put_all())
    server.page_size = 3
    assert run_sync(store.list("")) == [ListedObject(path, 3) for path in paths]
    assert [entry.path for entry in run_sync(store.list("a/1/01"))] == [p for p in paths if p.startswith("a/1/01")]
    server.page_size = 1
    assert list(run_sync(store.folders("a/"))) == [f"a/{number}/" for number in range(5)]


def test_a_page_of_a_listing_asks_for_few_directories(server: VolumesServer) -> None:
    store = once(place_on(server))
    for number in range(20):
        run_sync(store.put(f"a/{number:02}/x", b""))
    server.requests.clear()
    page = run_sync(store.list_page("a/"))
    assert (len(page.entries), len(server.requests)) == (0, 1)
    second = run_sync(store.list_page("a/", page.more))
    assert (len(second.entries), len(server.requests)) == (8, 9)
    assert len(run_sync(store.list_page("a/", page.more)).entries) == 8  # a page can be asked for again


def test_a_folder_with_nothing_but_folders_in_it_is_not_empty(server: VolumesServer) -> None:
    """Its first page is empty. Whoever took that for all would write into a folder that is in use."""
    store = place_on(server).open()
    assert run_sync(is_empty(store, ""))
    run_sync(store.put("a/b/c", b""))
    assert run_sync(store.list_page("")).entries == []
    assert not run_sync(is_empty(store, ""))
    run_sync(store.delete(["a/b/c"]))
    assert run_sync(is_empty(store, ""))


def test_a_job_lives_with_listings_that_are_late(server: VolumesServer) -> None:
    """What is committed is named by `_latest` and manifests. Only cleanup lists, and then later."""
    server.late = 3600
    place = place_on(server)
    with Checkpointer(place.url, place.storage_options) as client:
        for epoch in range(3):
            with client.begin(epoch=epoch) as attempt:
                attempt.snapshot("op", 0, b"%d" % epoch)
        client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    with Checkpointer(place.url, place.storage_options) as client:
        restored = client.restore()
        assert restored is not None
        assert restored.operator("op").partition(0) == [b"2"]


@pytest.mark.parametrize("answer", [gives(200, []), serves(5, None), gives(200, "gateway")])
def test_a_listing_that_cannot_be_read_is_tried_again(answer: Answer) -> None:
    with serving(answer) as fake, pytest.raises(DependencyError, match="no JSON object"):
        run_sync(once(fake.place("databricks")).list(""))


def test_a_whole_object_in_place_of_a_range_is_cut(server: VolumesServer) -> None:
    store = place_on(server).open()
    run_sync(store.put("x", b"0123456789"))
    server.ignores_ranges = True
    assert run_sync(store.get_range("x", 3, 4)) == b"3456"
    assert run_sync(store.get_range("x", 10, 4)) == b""


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_checkpointer.storage.databricks.store._LARGEST", 10)
    with serving(written()) as fake:
        store = once(fake.place("databricks"))
        run_sync(store.put("x", bytes(10)))
        with pytest.raises(IllegalArgumentError, match="x: 11 bytes; a file of a volume has at most 10 here"):
            run_sync(store.put("x", bytes(11)))
    assert len(fake.requests) == 1


# --- what there is not ---


@pytest.mark.parametrize(
    "answer",
    [
        refuses(404, "ENDPOINT_NOT_FOUND", "No API found for 'GET /api/3.0/fs/files'"),
        gives(404, "Not Found"),
        gives(404, {"message": "Not Found"}),
        serves(0, None),
    ],
    ids=["no API", "text", "no code", "proxy"],
)
@pytest.mark.parametrize("call", ["get", "get_range", "list", "delete", "put", "swap"])
def test_a_server_without_the_api_is_no_empty_root(answer: Answer, call: str) -> None:
    """Where the preview is turned off, or the address is that of the workspace, a root must not look empty."""
    if call != "list" and answer.__qualname__.startswith("serves"):
        return
    with serving(answer) as fake, pytest.raises((StoreNotFoundError, DependencyError), match=r"API 3\.0|no JSON"):
        run_sync(CALLS[call](once(fake.place("databricks"))))
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "said",
    [
        "Volume 'main.default.none' does not exist.",
        "Catalog 'main' was not found.",
        "[UC_VOLUME_NOT_FOUND] Volume `main`.`default`.`none` does not exist.",
        "The schema main.none could not be found",
    ],
)
@pytest.mark.parametrize("call", CALLS)
def test_a_volume_that_does_not_exist_is_named(call: str, said: str) -> None:
    answer = refuses(404, "NOT_FOUND", said)
    expected = "there is no volume /Volumes/main/default/checkpoints"
    with serving(answer) as fake, pytest.raises(StoreNotFoundError, match=expected):
        run_sync(CALLS[call](once(fake.place("databricks"))))


@pytest.mark.parametrize(
    "said",
    [
        "The file /Volumes/main/schema/volume/x does not exist.",
        "File 'volume/x' in volume main.default.v was not found",
        "Not found",
        "",
    ],
)
def test_a_missing_file_is_no_missing_volume(said: str) -> None:
    with serving(refuses(404, "NOT_FOUND", said)) as fake, pytest.raises(ObjectNotFoundError, match="x: not found"):
        run_sync(once(fake.place("databricks")).get("x"))


def test_missing_files_are_no_error_to_delete() -> None:
    """The API 3.0 says 204 of them, and 2.0 says 404."""
    with serving(NO_FILE) as fake:
        run_sync(once(fake.place("databricks")).delete(["x", "y"]))
        with pytest.raises(ObjectNotFoundError, match="x: not found"):
            run_sync(once(fake.place("databricks")).get("x"))
    assert len(fake.requests) == 3


# --- other processes ---


def test_a_client_goes_to_another_process_as_configuration_alone(server: VolumesServer) -> None:
    place = place_on(server)
    with Checkpointer(place.url, place.storage_options) as client:
        with client.begin(epoch=0) as attempt:
            attempt.snapshot("op", 0, b"1")
        sent = pickle.dumps(client)
    assert b"aiohttp" not in sent
    told = run_python(f"""if True:
        import pickle
        print(pickle.loads({sent!r}).restore().operator("op").partition(0))
    """)
    assert told.strip() == "[b'1']"


def test_a_store_of_the_environment_is_opened_anywhere(server: VolumesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_HOST", server.address)
    monkeypatch.setenv("DATABRICKS_TOKEN", server.issue())
    run_sync(open_store(ROOT).put("x", b"1"))
    told = run_python(f"""if True:
        from pyspark_checkpointer.runtime import run_sync
        from pyspark_checkpointer.storage import open_store
        print(run_sync(open_store({ROOT!r}).get("x")).data)
    """)
    assert told.strip() == "b'1'"
