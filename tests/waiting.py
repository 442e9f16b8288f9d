"""Waiting for what another process does: a look every hundredth of a second, and an end that says what was awaited."""

import time
from collections.abc import Callable
from typing import Any

import psutil

DEADLINE_SECONDS = 20.0
POLL_SECONDS = 0.01


def wait_for(what: str, condition: Callable[[], Any], *, seconds: float = DEADLINE_SECONDS) -> Any:
    """Return the condition's first true value."""
    until = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < until, f"waited {seconds:g} s for: {what}"
        time.sleep(POLL_SECONDS)


def is_alive(pid: int) -> bool:
    """A zombie whose parent has not looked yet is dead."""
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False
