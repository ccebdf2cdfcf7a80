"""Check arguments that several verbs have, before they do anything."""

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.runtime.user_functions import runs_nothing


def check_flags(**given: object) -> None:
    """Refuse a flag that is neither True nor False.

    Parameters of jobs are often texts, and the text "false" would count as True.
    """
    for name, flag in given.items():
        if not isinstance(flag, bool):
            raise IllegalArgumentError(f"{name}={flag!r:.40}: expected True or False")


def check_progress(progress: object) -> None:
    """Refuse what is no function to report progress to.

    The first report comes after the first writes.
    """
    if progress is not None and (not callable(progress) or runs_nothing(progress)):
        raise IllegalArgumentError(f"progress={progress!r:.60}: expected a function of two integers, or None")


def check_names(**given: object) -> None:
    """Refuse a text where a list of names is expected.

    It would be read as its letters.
    """
    for name, names in given.items():
        if isinstance(names, str):
            # Without the text, which may be a key.
            raise IllegalArgumentError(
                f"{name}: expected a list, as in {name}=[…], got a text of {len(names)} characters"
            )


__all__ = ["check_flags", "check_names", "check_progress"]
