"""A root of Event Processor Host for each test."""

import pytest

from tests.consumers.eventprocessorhost.eph_faults import Root


@pytest.fixture
def root() -> Root:
    return Root()
