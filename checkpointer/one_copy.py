"""Give the modules of the package a second name.

It is needed where a folder of a checkout is imported by the folder's own name.

The repository has the package in its folders `checkpointer` and `manifests`, and both can be imported from its root.
Without this, that would load a second copy of each module, with errors that no `except` matches and an event loop of
its own.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_as(folder: str, package: str) -> None:
    """Make `folder`, and every module below it, another name in `package`.

    It names the module of the same place in `package`.
    """
    # Before the finder of paths, which would find the folder and load its modules a second time.
    sys.meta_path.insert(0, _OtherName(folder, package))
    sys.modules[folder] = import_module(package)


class _OtherName(MetaPathFinder, Loader):
    """A finder that answers an import below `folder` with the module of `package`."""

    def __init__(self, folder: str, package: str) -> None:
        self._folder = folder
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        below = fullname.removeprefix(f"{self._folder}.")
        if below in (fullname, "__main__"):  # `python -m` runs a file, not a module that is imported already
            return None
        return ModuleSpec(fullname, self, origin=f"{self._package}.{below}")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(str(spec.origin))
        # The import system is about to write the spec of the other name into the module. It stays with that spec,
        # not with this finder, since threads may import several modules at the same time.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has replaced it by the spec of the other name.
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state
