"""A small server of volumes: it speaks the documented Files API 3.0 of Databricks, and breaks as real services do.

`python -m tests.volumes_server PORT FILE TOKEN` runs one whose files outlive it. In a test, `volumes()` runs one in
threads, whose attributes say what it does wrong.
"""

import base64
import hmac
import itertools
import json
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

VOLUME = "/Volumes/main/default/checkpoints"
CLIENT = ("service-principal", "hunter22-of-the-principal")

Meddle = Callable[["Handler"], bool]
"""Answers a request in place of the server, or does something to it; True if the server is to do nothing more."""


class VolumesServer(ThreadingHTTPServer):
    """The server; its requests are noted as "METHOD path"."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int = 0, file: str = ":memory:", token: str = "") -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.tokens = {token} if token else set()
        self.requests: list[str] = []
        self.database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self.database.executescript(
            "pragma journal_mode=wal; pragma synchronous=off;"
            "create table if not exists files(path primary key, parent, name, etag, at, data);"
            "create index if not exists children on files(parent, name);"
            "create table if not exists directories(path primary key, parent, name);"
        )
        self.lock = threading.Lock()
        self.numbers = itertools.count()
        # What it does wrong.
        self.meddle: Meddle = lambda _: False
        self.ignores_conditions = False
        self.compares_first = False
        self.ignores_ranges = False
        self.tag = '"{}"'
        self.page_size = 1000
        self.late = 0.0
        self.makes_directories = True
        self.status_of_stale = 412
        self.has_endpoints = True
        self.lifetime: float = 3600

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def issue(self) -> str:
        token = f"hunter22-{secrets.token_hex(8)}"
        self.tokens.add(token)
        return token

    def ask(self, query: str, *arguments: object) -> list[Any]:
        return self.database.execute(query, arguments).fetchall()

    def make_directory(self, path: str) -> None:
        while path.startswith(VOLUME):
            parent, _, name = path.rpartition("/")
            self.ask("insert or ignore into directories values (?, ?, ?)", path, parent, name)
            path = parent


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: VolumesServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    body = b""

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        if not self.server.meddle(self):
            self.serve()
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass

    # --- answers ---

    def tell(self, status: int, document: object, **headers: str) -> None:
        self.send(status, json.dumps(document).encode(), **{"Content-Type": "application/json", **headers})

    def refuse(self, status: int, code: str, message: str, **headers: str) -> None:
        self.tell(status, {"error_code": code, "message": message, "details": []}, **headers)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    # --- requests ---

    def serve(self) -> None:
        url = urlsplit(self.path)
        if (self.command, url.path) == ("POST", "/oidc/v1/token"):
            return self.give_token()
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not any(hmac.compare_digest(bearer, token) for token in self.server.tokens):
            return self.refuse(401, "UNAUTHENTICATED", f"Invalid access token: Bearer {bearer}")
        if url.path == "/api/2.0/fs/endpoints" and self.server.has_endpoints:
            return self.tell_endpoints()
        _, _, rest = url.path.partition("/api/3.0/fs/")
        kind, _, path = rest.partition("/")
        if kind not in ("files", "directories"):
            return self.refuse(404, "ENDPOINT_NOT_FOUND", f"No API found for '{self.command} {url.path}'")
        path = f"/{unquote(path)}"
        if not f"{path}/".startswith(f"{VOLUME}/"):
            return self.refuse(404, "NOT_FOUND", f"Volume '{'.'.join(path.split('/')[2:5])}' does not exist.")
        with self.server.lock:
            return getattr(self, f"{self.command}_{kind}".lower())(path, parse_qs(url.query))  # type: ignore[no-any-return]

    def give_token(self) -> None:
        given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        if given != ":".join(CLIENT) or b"grant_type=client_credentials" not in self.body:
            return self.tell(401, {"error": "invalid_client", "error_description": f"refused {given}"})
        told = {"access_token": self.server.issue(), "token_type": "Bearer", "expires_in": self.server.lifetime}
        return self.tell(200, told)

    def tell_endpoints(self) -> None:
        name = self.server.address.partition("://")[2]
        third = {"api": "FILES_API", "api_version": "3.0", "scheme": "http", "hostname": name}
        self.tell(200, {"endpoints": [{**third, "api": "IO_OFFLOAD", "api_version": None}, third]})

    def get_files(self, path: str, _: object) -> None:
        found = self.server.ask("select etag, data from files where path = ?", path)
        if not found:
            return self.refuse(404, "NOT_FOUND", "The file being accessed is not found.")
        etag, data = found[0]
        asked = self.headers.get("Range")
        if asked is None or self.server.ignores_ranges:
            return self.send(200, data, ETag=etag, **{"Content-Type": "application/octet-stream"})
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        if not part:
            return self.refuse(416, "INVALID_RANGE", "The range is not satisfiable.")
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self.send(206, part, ETag=etag, **{"Content-Range": span})

    def put_files(self, path: str, _: object) -> None:
        if "Content-Length" not in self.headers:
            return self.refuse(411, "INVALID_PARAMETER_VALUE", "Content-Length is required.")
        parent, _, name = path.rpartition("/")
        if not self.server.makes_directories and not self.server.ask("select 1 from directories where path=?", parent):
            return self.refuse(404, "NOT_FOUND", "The directory being accessed is not found.")
        holds = self.holds(path)
        if self.server.compares_first:
            self.pause()
        if not holds:
            return self.refuse(self.server.status_of_stale, "PRECONDITION_FAILED", "The condition is not met.")
        etag = self.server.tag.format(f"{next(self.server.numbers)}-{secrets.token_hex(4)}")
        self.server.make_directory(parent)
        self.server.ask(
            "replace into files values (?, ?, ?, ?, ?, ?)", path, parent, name, etag, time.monotonic(), self.body
        )
        return self.send(200, b"", ETag=etag)

    def holds(self, path: str) -> bool:
        """Return whether the conditions of a request are met."""
        found = self.server.ask("select etag from files where path = ?", path)
        current = found[0][0] if found else None
        match, none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if self.server.ignores_conditions:
            return True
        if match is not None:
            # The comparison is the strong one: a weak tag is never equal to anything.
            strong = current is not None and not current.startswith("W/")
            return current is not None and (match == "*" or (strong and match == current))
        return none is None or current is None or (none != "*" and none != current)

    def pause(self) -> None:
        """Let other requests come between a comparison and a write."""
        self.server.lock.release()
        time.sleep(0.02)
        self.server.lock.acquire()

    def delete_files(self, path: str, _: object) -> None:
        self.server.ask("delete from files where path = ?", path)
        self.send(204, b"")

    def put_directories(self, path: str, _: object) -> None:
        self.server.make_directory(path)
        self.send(204, b"")

    def get_directories(self, path: str, query: dict[str, list[str]]) -> None:
        if not self.server.ask("select 1 from directories where path = ?", path):
            return self.refuse(404, "NOT_FOUND", "The directory being accessed is not found.")
        after = base64.b64decode(query.get("page_token", [""])[0]).decode()
        size = self.server.page_size
        rows = self.server.ask(
            "select * from (select name, length(data) as size from files where parent=? and at<=? union all"
            " select name, null as size from directories where parent=?) where name > ? order by name limit ?",
            *(path, time.monotonic() - self.server.late, path, after, size + 1),
        )
        contents = [
            {"path": f"{path}/{name}", "name": name, "is_directory": True}
            if length is None
            else {
                "path": f"{path}/{name}",
                "name": name,
                "is_directory": False,
                "file_size": length,
                "last_modified": 0,
            }
            for name, length in rows[:size]
        ]
        more = {"next_page_token": base64.b64encode(rows[size - 1][0].encode()).decode()} if len(rows) > size else {}
        return self.tell(200, {"contents": contents, **more})


@contextmanager
def volumes() -> Iterator[VolumesServer]:
    """Run a server in threads of this process."""
    server = VolumesServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.database.close()


if __name__ == "__main__":
    VolumesServer(int(sys.argv[1]), sys.argv[2], sys.argv[3]).serve_forever()
