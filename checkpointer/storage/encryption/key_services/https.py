"""Send JSON to a key service, and return the JSON that it answers.

The standard library alone does that. It takes proxies and certificates from the usual variables (`HTTPS_PROXY`,
`SSL_CERT_FILE`). No redirect is followed, as it would carry the token to another host.
"""

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from pyspark_checkpointer.errors import RetryableError
from pyspark_checkpointer.storage.encryption.key_services.refusals import (
    no_credentials,
    no_key,
    no_permission,
    throttled,
    unreachable,
)

_SECONDS = 20.0
"""The time limit of one request."""

_ATTEMPTS = 3

_MAX_ANSWER = 1 << 20

Answer = Mapping[str, Any]


class RefusedError(Exception):
    """The service refuses a request for a reason that only its own provider knows."""

    def __init__(self, status: int, answer: Answer) -> None:
        super().__init__(status)
        self.status = status
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Service:
    """A key service, as the errors about it name it."""

    name: str
    """The provider and its key, as a text names them."""
    permission: str
    """The permission that the identity needs."""
    login: str
    """The settings that give an identity."""

    def ask(
        self, url: str, headers: Mapping[str, str], body: Answer | None = None, tls: ssl.SSLContext | None = None
    ) -> Answer:
        """Return the answer to a POST of `body`, or to a GET without one.

        Raises `RefusedError` where the reason depends on the service, and errors of the tree otherwise.
        """
        data = None if body is None else json.dumps(body).encode()
        opener = _opener(tls)

        def send() -> Answer:
            try:
                request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})  # noqa: S310
                with opener.open(request, timeout=_SECONDS) as answer:
                    found = _parse(answer.read(_MAX_ANSWER))
                if found is None:
                    raise unreachable(self.name, "its answer is no JSON object")
                return found
            except urllib.error.HTTPError as error:
                with error:
                    raise self._refusal(error) from None
            except urllib.error.URLError as error:
                raise unreachable(self.name, type(error.reason).__name__) from None
            except (OSError, http.client.HTTPException) as error:
                raise unreachable(self.name, type(error).__name__) from None
            except ValueError:  # An address or a header cannot be sent. The text of this error may quote the token.
                raise no_credentials(self.name, self.login) from None

        # All requests to key services can be sent twice.
        retrying = Retrying(
            retry=retry_if_exception_type(RetryableError),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=wait_random_exponential(multiplier=0.2, max=2),
            reraise=True,
        )
        found: Answer = retrying(send)
        return found

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        """Return the error that an answer means which is not 200."""
        status, said = error.code, f"HTTP {error.code}"
        if status == 401:
            return no_credentials(self.name, self.login)
        if status == 403:
            return no_permission(self.name, said, self.permission)
        if status == 404:
            return no_key(self.name)
        if status == 429:
            return throttled(self.name, said)
        if status < 400:
            return unreachable(self.name, f"{said}: redirects are not followed")
        if status == 408 or status >= 500:
            return unreachable(self.name, said)
        try:
            return RefusedError(status, _parse(error.read(_MAX_ANSWER)) or {})
        except (OSError, http.client.HTTPException):
            return RefusedError(status, {})

    def decode64(self, value: Any) -> bytes:
        """Return the bytes that an answer holds in base64, in whichever alphabet."""
        try:
            text = value.replace("-", "+").replace("_", "/")
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (ValueError, AttributeError):
            raise unreachable(self.name, "its answer lacks the key") from None


def encode64(data: bytes) -> str:
    """Return bytes as the text that JSON holds."""
    return base64.b64encode(data).decode()


def field(answer: Answer, *names: str) -> Any:
    """Return a field inside an answer; None where it is not there."""
    found: Any = answer
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _opener(tls: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Return what sends by HTTP and HTTPS: no other scheme, and no redirect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=tls),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _parse(data: bytes) -> Answer | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


__all__ = ["Answer", "RefusedError", "Service", "encode64", "field"]
