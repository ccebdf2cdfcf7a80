"""Copy a user's function, as Spark copies it into each task."""

import io
import pickle
from typing import Any, TypeVar

from pyspark import cloudpickle

T = TypeVar("T")


def copy_function(function: T) -> T:
    """Return a copy of an object that holds a user's function.

    A function of an imported module is pickled by its name, so it is itself its copy, with the module as this process
    has it. Raises `PicklingError` if the function uses a class of the main program or of another function: within one
    process such a class would be itself its copy too, and would get the older variables and attributes of the pickle.
    """
    stored = io.BytesIO()
    _Pickler(stored).dump(function)  # type: ignore[no-untyped-call]
    copied: T = pickle.loads(stored.getvalue())  # noqa: S301  # it was pickled in the line above
    return copied


class _Pickler(cloudpickle.Pickler):
    """A pickler that refuses classes which it would write as code."""

    def reducer_override(self, given: Any) -> Any:
        reduced = super().reducer_override(given)  # type: ignore[no-untyped-call]
        # A class that is made anew has a state that is set afterwards. Others are found by their names.
        if isinstance(given, type) and reduced is not NotImplemented and len(reduced) > 2:
            raise pickle.PicklingError(f"{given.__qualname__} is no class of an imported module, and cannot be copied")
        return reduced


__all__ = ["copy_function"]
