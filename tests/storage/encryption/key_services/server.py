"""A server on loopback that stands for key services on their own hosts.

It is an HTTP proxy: a client that asks it for a tunnel to a host meets that host's service, with a certificate that
the clients are told to trust. So a provider is tested with its real addresses, and with no setting of its own.
"""

import json
import secrets
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Body = Mapping[str, Any]
Service = Callable[["Request"], "Answer"]


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    verb: str
    path: str
    headers: Message
    data: bytes

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json"
        return json.loads(self.data)


@dataclass(frozen=True)
class Answer:
    """What a service answers."""

    status: int
    body: Body | bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Server:
    """Services by the names of their hosts; the empty name is the server itself, without a tunnel."""

    def __init__(self, folder: Path, hosts: Mapping[str, Service]) -> None:
        self.hosts = dict(hosts)
        self.authority = folder / "authority.pem"
        tls = _certificates(folder, self.authority, [host for host in hosts if host])
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30
            tunnel: Service | None = None

            def do_CONNECT(self) -> None:
                self.tunnel = server.hosts.get(self.path.partition(":")[0])
                if self.tunnel is None:
                    self.send_error(502)
                    return
                self.send_response_only(200)
                self.end_headers()
                self.close_connection = False  # some clients ask by HTTP/1.0
                self.connection = tls.wrap_socket(self.connection, server_side=True)
                self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service = self.tunnel or server.hosts[""]
                found = service(Request(self.command, self.path, self.headers, data))
                body = found.body if isinstance(found.body, bytes) else json.dumps(found.body).encode()
                self.send_response(found.status)
                for name, value in {**found.headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which clients take this server for the hosts."""
        return {
            "https_proxy": self.url,
            "no_proxy": "127.0.0.1",
            "SSL_CERT_FILE": str(self.authority),
            "REQUESTS_CA_BUNDLE": str(self.authority),
        }

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _certificates(folder: Path, authority: Path, hosts: list[str]) -> ssl.SSLContext:
    """Return what proves to be all of the hosts, to whom trusts `authority`."""
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "services")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    made = []
    for name, key in zip(names, keys, strict=True):
        building = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(secrets.randbits(64))
            .not_valid_before(datetime.now(UTC) - timedelta(days=1))
            .not_valid_after(datetime.now(UTC) + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=not made, path_length=None), critical=True)
        )
        if made:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            building = building.add_extension(alternatives, critical=False)
        made.append(building.sign(keys[0], hashes.SHA256()))
    authority.write_bytes(made[0].public_bytes(serialization.Encoding.PEM))
    chain = folder / "services.pem"
    chain.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made[1].public_bytes(serialization.Encoding.PEM)
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain)
    return tls
