"""Define the JSON of the failure of a verb."""

from typing import Annotated, TypedDict


class Error(TypedDict):
    """The reason for the failure of a verb."""

    error: "Failure"


class Failure(TypedDict):
    """The only field of an error."""

    type: Annotated[str, "the name of the exception's class"]
    message: str
    retryable: Annotated[bool, "whether waiting can help"]
    status: Annotated[int, "the exit status"]
