"""Stores of which one thing is changed, and everything above it digested again: that thing alone can be wrong.

A change is drawn from a seed. Its kind says what was changed and how; a test names kinds by it.
"""

from tests.judge.hostile.change import Hostile, files_of, hostile
from tests.judge.hostile.value_pool import SPEC

__all__ = ["SPEC", "Hostile", "files_of", "hostile"]
