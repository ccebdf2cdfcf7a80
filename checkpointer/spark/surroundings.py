"""Compare what a user's function finds around it in a task and in the driver.

A container's image, a machine or a setting may give executors another time zone, locale, folder or environment.
"""

import hashlib
import locale
import os
import time

_SET_FOR_WORKERS = ("SPARK_", "PYSPARK_", "_PYSPARK_", "PYTHON", "PYENV_", "_PYENV_")
"""Beginnings of the names of variables that Spark, or a shim of pyenv, sets for workers or for a driver.

Those of Python too: Spark sets the paths of modules, and `works_alike` looks at the seed of hashes.
"""

_OF_START = {"MASTER", "OMP_NUM_THREADS", "PATH", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_"}
"""Variables that depend on the machine, or on the program that started a process."""


def surroundings() -> str:
    """Return a digest of what a function finds around it in this process.

    That is the time zone, the locale, the working directory and the environment, without variables that differ in all
    tasks, such as those of Spark's own.
    """
    variables = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name not in _OF_START and not name.startswith(_SET_FOR_WORKERS)
    )
    zone = time.tzname, time.timezone, time.altzone
    # Variables may hold secrets, so their values are hashed.
    found = repr((zone, locale.setlocale(locale.LC_ALL), _folder(), variables))
    return hashlib.sha256(found.encode("utf-8", "surrogateescape")).hexdigest()


def _folder() -> str | None:
    """Return the working directory, or None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


__all__ = ["surroundings"]
