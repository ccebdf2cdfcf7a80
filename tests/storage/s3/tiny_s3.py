"""A bucket of S3 in memory, which does what a test says before it does its work."""

import hashlib
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Refusal = tuple[int, str] | tuple[int, str, dict[str, str]]
"""Status and code of an answer, and headers of it."""

PAGE = 3
"""Entries in one page of a listing of a directory bucket."""

Check = Callable[["Asked"], Refusal | None]


class Asked:
    """A request: its method, key and headers, and who signed it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        self.method, self.query, self.headers = handler.command, url.query, handler.headers
        self.key = unquote(url.path).removeprefix(f"/{handler.server.bucket}").removeprefix("/")  # type: ignore[attr-defined]
        signed = re.search(r"Credential=([^/]+)/", handler.headers.get("Authorization", ""))
        self.user = signed[1] if signed else None
        self.token = handler.headers.get("x-amz-security-token")

    @property
    def is_swap(self) -> bool:
        """Whether it replaces an object on a condition."""
        return self.method == "PUT" and "If-Match" in self.headers


class TinyS3(ThreadingHTTPServer):
    """The server; `check` may refuse a request, which then does nothing."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, check: Check, bucket: str = "bucket") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.check, self.bucket = check, bucket
        self.objects: dict[str, bytes] = {}
        self.asked: list[Asked] = []
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: TinyS3
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self._body()
        asked, server = Asked(self), self.server
        with server.lock:
            server.asked.append(asked)
            refused = server.check(asked)
            if refused:
                status, code, headers, answer = *refused[:2], refused[2] if len(refused) > 2 else {}, b""
            else:
                status, code, headers, answer = self._do(asked, body)
        if code:
            answer = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(answer)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_HEAD = _serve  # noqa: N815  # names of the base class

    def _do(self, asked: Asked, body: bytes) -> tuple[int, str, dict[str, str], bytes]:
        objects, key = self.server.objects, asked.key
        if asked.method == "POST":
            for name in re.findall(rb"<Key>(.*?)</Key>", body):
                objects.pop(name.decode(), None)
            return 200, "", {}, b'<?xml version="1.0"?><DeleteResult/>'
        found = objects.get(key)
        if asked.method == "GET" and self.server.bucket.endswith("--x-s3") and not key:
            return self._list_folder(parse_qs(asked.query, keep_blank_values=True))
        if asked.method == "GET" and not key:
            prefix = unquote(re.search(r"prefix=([^&]*)", asked.query)[1])  # type: ignore[index]
            rows = "".join(
                f"<Contents><Key>{name}</Key><Size>{len(data)}</Size></Contents>"
                for name, data in objects.items()
                if name.startswith(prefix)
            )
            return 200, "", {}, f'<?xml version="1.0"?><ListBucketResult>{rows}</ListBucketResult>'.encode()
        if asked.method == "GET":
            if found is None:
                return 404, "NoSuchKey", {}, b""
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("Range", ""))
            part = found[int(span[1]) : int(span[2]) + 1] if span else found
            return 206 if span else 200, "", {"ETag": _etag(found)}, part
        expected = asked.headers.get("If-Match")
        if ("If-None-Match" in asked.headers and found is not None) or (expected and expected != _etag(found or b"")):
            return 412, "PreconditionFailed", {}, b""
        objects[key] = body
        return 200, "", {"ETag": _etag(body)}, b""

    def _list_folder(self, query: dict[str, list[str]]) -> tuple[int, str, dict[str, str], bytes]:
        """Answer as a directory bucket does: it wants a session, lists whole folders, in no order, and in pages."""
        if "session" in query:
            names = {"SessionToken": "token", "SecretAccessKey": "secret", "AccessKeyId": "session"}
            names["Expiration"] = (datetime.now(UTC) + timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
            told = "".join(f"<{name}>{value}</{name}>" for name, value in names.items())
            text = f"<CreateSessionResult><Credentials>{told}</Credentials></CreateSessionResult>"
            return 200, "", {}, f'<?xml version="1.0"?>{text}'.encode()
        prefix, start = query["prefix"][0], int(query.get("continuation-token", ["0"])[0])
        if not prefix.endswith("/") and prefix:
            return 400, "InvalidRequest", {}, b""
        if "uploads" in query:
            return 200, "", {}, b'<?xml version="1.0"?><ListMultipartUploadsResult/>'
        found = [name for name in self.server.objects if name.startswith(prefix)]
        if "delimiter" in query:
            folders = {prefix + rest.split("/")[0] for name in found if "/" in (rest := name[len(prefix) :])}
            rows = [f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>" for name in folders]
        else:
            rows = [f"<Contents><Key>{n}</Key><Size>{len(self.server.objects[n])}</Size></Contents>" for n in found]
        rows.sort(key=lambda row: zlib.crc32(row.encode()))
        end = start + PAGE
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
        text = "".join(rows[start:end]) + (more if end < len(rows) else "")
        return 200, "", {}, f'<?xml version="1.0"?><ListBucketResult>{text}</ListBucketResult>'.encode()

    def _body(self) -> bytes:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return raw
        body = b""
        while raw:
            size, _, raw = raw.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            body, raw = body + raw[:length], raw[length + 2 :]
            if not length:
                break
        return body

    def log_message(self, *_: Any) -> None:
        pass


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def tiny_s3(check: Check = lambda asked: None, bucket: str = "bucket") -> Iterator[TinyS3]:
    server = TinyS3(check, bucket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
