"""A second reader of stores, written from `manifests/SPEC.md` alone by somebody who had not seen the library's code.

It is the judge of the format: where it and the library read a store differently, one of them, or the text, is wrong. So
it imports nothing of the project, and whatever is changed here must follow from the text. Its files are named, and
described, by the sections of the text.
"""

from tests.judge.reader.checks import Missing, Refused
from tests.judge.reader.restore import read
from tests.judge.reader.schema import read_schema
from tests.judge.reader.values import value

__all__ = ["Missing", "Refused", "read", "read_schema", "value"]
