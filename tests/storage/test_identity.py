"""Failures of the identity service are outages; its answers say nothing about any object."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("azure.identity")
pytest.importorskip("adlfs")

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.identity import CredentialUnavailableError

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import CheckpointError, DependencyError, StoreRefusedError, ThrottlingError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.azure.errors import is_missing, is_past_the_end, is_refused_condition, meaning
from pyspark_checkpointer.storage.base import ObjectNotFoundError
from pyspark_checkpointer.storage.s3 import errors

pytestmark = pytest.mark.usefixtures("no_pauses")


def answered(status: int, message: str = "said", kind: type[HttpResponseError] = ClientAuthenticationError) -> Any:
    """Return the error that the SDK makes of an answer."""
    told = {"content_type": "text/plain", "text": lambda *_: message}
    response: Any = SimpleNamespace(status_code=status, reason="why", headers={}, **told)
    return kind(message=message, response=response)


CHAIN = (
    "DefaultAzureCredential failed to retrieve a token from the included credentials.\n\tManagedIdentityCredential: "
)

OUTAGES: dict[str, Exception] = {
    "no answer of the identity endpoint": CredentialUnavailableError("no response from the IMDS endpoint."),
    "a chain in which none had one": ClientAuthenticationError(CHAIN + "no response from the IMDS endpoint."),
    "no connection": ServiceRequestError("cannot connect to host login.microsoftonline.com"),
    "not found by a proxy": answered(404),
    "gone while it is updated": answered(410),
    "an error of its own": answered(500),
    "a gateway": answered(502),
    "a timeout": answered(408),
    "too many": answered(429),
    "closed for a moment": answered(503),
    "precondition": answered(412),
    "range": answered(416),
    "a passing trouble that is called a refusal": answered(400, "AADSTS90033: A transient error has occurred."),
}

REFUSALS: dict[str, Exception] = {
    "a wrong secret": answered(401, "AADSTS7000215: Invalid client secret"),
    "an unknown tenant": answered(400, "AADSTS90002: Tenant 'x' not found"),
    "a wrong secret in a chain": ClientAuthenticationError(CHAIN + "AADSTS7000215: Invalid client secret"),
    "no right to the container": answered(403, "AuthorizationPermissionMismatch"),
    "a wrong key": answered(403, "AuthenticationFailed"),
}


class Credential:
    """A credential that never gets a token."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    async def get_token(self, *_: str, **__: Any) -> Any:
        self.asked += 1
        raise self.error

    async def close(self) -> None:
        pass


def options(credential: Credential) -> dict[str, Any]:
    return {"account_name": "account", "credential": credential}


@pytest.mark.parametrize("what", OUTAGES)
def test_an_outage_of_the_identity_service_is_tried_again(what: str) -> None:
    credential = Credential(OUTAGES[what])
    with pytest.raises((DependencyError, ThrottlingError), match="12 attempts"):
        run_sync(open_store("abfs://container/root", options(credential)).get("_latest"))
    assert credential.asked >= 12


@pytest.mark.parametrize("what", OUTAGES)
def test_no_answer_of_the_identity_service_is_taken_for_an_empty_root(what: str) -> None:
    client = Checkpointer("abfs://container/root", options(Credential(OUTAGES[what])))
    with pytest.raises(CheckpointError) as met:
        client.restore()
    assert met.value.retryable


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_is_final(what: str) -> None:
    credential = Credential(REFUSALS[what])
    with pytest.raises(StoreRefusedError, match="correct the credentials"):
        run_sync(open_store("abfs://container/root", options(credential)).get("_latest"))
    assert credential.asked <= 2, "the SDK may ask once more itself"


@pytest.mark.parametrize("status", [404, 416, 412])
def test_what_the_service_of_the_blobs_answers_is_understood_as_before(status: int) -> None:
    error = answered(status, kind=HttpResponseError)
    assert (is_missing(error), is_past_the_end(error), is_refused_condition(error)) == (
        status == 404,
        status == 416,
        status == 412,
    )
    if status == 404:
        assert isinstance(meaning(error, "name", "url", {}), ObjectNotFoundError)


def test_an_identity_provider_that_does_not_answer_sts_is_tried_again() -> None:
    from botocore.exceptions import ClientError

    reply: Any = {"Error": {"Code": "IDPCommunicationError"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    why = errors.refusal(ClientError(reply, "AssumeRoleWithWebIdentity"))
    assert isinstance(errors.meaning(why, "name", "s3://bucket", {}), DependencyError)
