"""A server that answers as a test says, also with what real servers answer only in trouble."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.storage.conftest import Place

Answer = Callable[[BaseHTTPRequestHandler], None]


class FakeServer(ThreadingHTTPServer):
    """A server that notes each request as "METHOD path" and gives the next answer, and the last one for ever."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *answers: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)
        self.requests: list[str] = []

    def place(self, kind: str) -> Place:
        endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        if kind == "s3":
            options = {"endpoint_url": endpoint, "key": "AKIAFAKEKEY", "secret": "hunter22hunter22"}
            return Place(kind, "s3://bucket/root", options)
        if kind == "gcs":
            from google.oauth2.credentials import Credentials

            return Place(kind, "gs://bucket/root", {"endpoint_url": endpoint, "token": Credentials("hunter22hunter22")})
        if kind == "databricks":
            options = {"endpoint_url": endpoint, "token": "hunter22hunter22"}
            return Place(kind, "dbfs:/Volumes/main/default/checkpoints/root", options)
        connection = (
            "DefaultEndpointsProtocol=http;AccountName=account;"
            f"AccountKey=aHVudGVyMjJodW50ZXIyMg==;BlobEndpoint={endpoint}/account;"
        )
        return Place(kind, "abfs://container/root", {"connection_string": connection})


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(*answers: Answer) -> Iterator[FakeServer]:
    server = FakeServer(*answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def says(status: int, code: str, message: str = "as the test says") -> Answer:
    """Return an error of the service, in a form that the clients of S3 and Azure understand."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        body = text.encode() if handler.command != "HEAD" else b""
        handler.send_response(status)
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("x-ms-error-code", code)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def tells(status: int, reason: str, message: str) -> Answer:
    """Return an error of Google Cloud Storage."""
    return gives(status, {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}})


def refuses(status: int, code: str, message: str) -> Answer:
    """Return an error of the Files API of Databricks."""
    return gives(status, {"error_code": code, "message": message, "details": []})


def gives(status: int, document: object, **headers: str) -> Answer:
    """Return a document in JSON."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps(document).encode()
        handler.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection in place of an answer: what became of the request is unknown."""
    handler.close_connection = True


def breaks_off(promised: int, sent: int) -> Answer:
    """Return an object whose connection is closed before its end."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206 if "Range" in handler.headers or "x-ms-range" in handler.headers else 200)
        for name, value in {
            "ETag": '"1"',
            "x-goog-generation": "1",
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content-Length": str(promised),
            "Content-Range": f"bytes 0-{promised - 1}/{promised}",
            "x-ms-blob-type": "BlockBlob",
        }.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(bytes(sent))
        handler.wfile.flush()
        handler.close_connection = True

    return answer


def serves(size: int, date: str | None) -> Answer:
    """Return an object of zeros, or the range that is asked for, from a server whose clock says `date`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("x-ms-range") or handler.headers.get("Range")
        first, last = 0, size - 1
        if asked:
            start, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end), last)
        handler.send_response_only(206 if asked else 200)
        for name, value in {
            "Date": date,
            "ETag": '"1"',
            "x-goog-generation": "1",
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content-Length": str(last + 1 - first),
            "Content-Range": f"bytes {first}-{last}/{size}",
            "x-ms-blob-type": "BlockBlob",
        }.items():
            if value is not None:
                handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(bytes(last + 1 - first))

    return answer


def says_nothing(handler: BaseHTTPRequestHandler) -> None:
    """Give no answer until the client has gone."""
    handler.close_connection = True
    handler.connection.settimeout(20)
    try:
        handler.connection.recv(1)
    except OSError:
        return
