"""Fixtures of several suites here."""

import time

import pytest

from tests.unit.redis_world import Clock, World


@pytest.fixture
def clock(monkeypatch):
    """The fake Redis's clock, to be moved by hand."""
    clock = Clock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def world():
    """A Redis of the test's own."""
    return World()
