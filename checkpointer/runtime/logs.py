"""Log what is done already."""

import logging
from contextlib import suppress

logger = logging.getLogger("pyspark_checkpointer")


def log_safely(level: int, message: str, *arguments: object, exc_info: bool = False) -> None:
    """Log a message about something that is done already.

    A filter or handler of the user that fails must not look as if that had failed.
    """
    with suppress(Exception):
        logger.log(level, message, *arguments, exc_info=exc_info)
