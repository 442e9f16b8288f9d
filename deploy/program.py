"""A child process that can be started, watched and stopped, over and over, and never outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import msgspec

from deploy import spawn

_POLL_SECONDS = 0.02
_TAIL_BYTES = 4096
_TAIL_LINES = 3
_TAIL_CHARACTERS = 400
_LOG_LIMIT_BYTES = 16 * 1024 * 1024


class Account(StrEnum):
    """Whom a program runs as; all but KEEP are for root only and explained in :mod:`deploy.spawn`."""

    KEEP = "keep"
    ANY = "any"
    NAMESPACE = "namespace"
    CAPABILITY = "capability"


class Tie(StrEnum):
    """How a program learns that its parent died: from the kernel (Linux) or from a watcher at a pipe."""

    KERNEL = "kernel"
    PIPE = "pipe"


class StopStep(msgspec.Struct, frozen=True):
    """A signal and for how many seconds its effect is awaited before the next step."""

    signal: signal.Signals
    seconds: float


GENTLE_STOP = (StopStep(signal.SIGTERM, 10.0),)
NATIVE_TIE = Tie.KERNEL if sys.platform == "linux" else Tie.PIPE


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a start needs. ``argv[0]`` is an absolute path; ``env`` replaces the environment as a whole.

    ``log`` is appended to (mode 0600), None means the parent's own output; ``input`` is read, None means
    nothing. ``keep_open`` lists descriptors that the program inherits, ``own`` trees that are made to belong to
    ``account``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    input: Path | None = None
    log: Path | None = None
    death_signal: signal.Signals = signal.SIGTERM
    account: Account = Account.KEEP
    own: tuple[Path, ...] = ()
    keep_open: tuple[int, ...] = ()
    tie: Tie = NATIVE_TIE


class Child:
    """A started program. It leads a session of its own, so a terminal's Ctrl-C reaches only the parent."""

    def __init__(self, launch: Launch) -> None:
        with ExitStack() as stack:
            guard: int | None = None
            self._guard: int | None = None
            if launch.tie is Tie.PIPE:
                guard, self._guard = os.pipe()
                stack.callback(os.close, guard)
            spec = spawn.Spec(
                parent=os.getpid(),
                death_signal=launch.death_signal,
                guard=guard,
                account=launch.account,
                own=[str(tree) for tree in launch.own],
            )
            feed = None if launch.input is None else stack.enter_context(launch.input.open("rb"))
            output = None if launch.log is None else stack.enter_context(_open_log(launch.log))
            self._process = subprocess.Popen(  # noqa: S603 - the caller's program, no shell
                [sys.executable, "-I", "-S", spawn.__file__, json.dumps(spec), *launch.argv],
                env=launch.env,
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL if feed is None else feed,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
                pass_fds=launch.keep_open if guard is None else (*launch.keep_open, guard),
            )

    @property
    def pid(self) -> int:
        """The program's own pid: the helper that starts it turns into it."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return None while it runs, then its return code as Popen's; its process group is ended with it."""
        status = self._process.returncode
        if status is not None:
            return status
        status = self._process.poll()
        if status is None:
            return None
        if self._guard is not None:
            with suppress(BrokenPipeError):
                os.write(self._guard, b".")
            os.close(self._guard)
            self._guard = None
        # What a killed leader left behind would keep its port. A group lives as long as it has a member, so
        # its number is not given to a stranger; an empty one is gone.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return status

    def send(self, number: signal.Signals) -> None:
        """Signal the program alone; SIGKILL goes to its whole group."""
        if self.poll() is not None:
            return
        if number is signal.SIGKILL:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def wait(self, *, seconds: float) -> int | None:
        """Return how it ended, or None when it still runs after that time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.poll()


class Stopping:
    """An orderly stop in steps, advanced by whoever has the loop: several can be under way at once."""

    def __init__(self, child: Child, steps: Sequence[StopStep]) -> None:
        self._child = child
        self._steps = iter((*steps, StopStep(signal.SIGKILL, float("inf"))))
        self._until = 0.0

    def advance(self, *, now: float, hurry: bool) -> bool:
        """Take the next step when its time has come, or at once in a hurry; return whether it has ended."""
        if self._child.poll() is not None:
            return True
        while now >= self._until or (hurry and self._until != float("inf")):
            step = next(self._steps)
            self._until = now + step.seconds
            self._child.send(step.signal)
        return False


class Program(ABC):
    """A named program with its present child, if any. ``log`` holds its output, None if it is not kept."""

    def __init__(self, *, name: str, log: Path | None, stop_steps: Sequence[StopStep] = GENTLE_STOP) -> None:
        self.name = name
        self.log = log
        self.stop_steps = tuple(stop_steps)
        self.child: Child | None = None
        self._log_from = 0

    @abstractmethod
    def launch(self) -> Child:
        """Prepare the ground and start it once."""

    def spawn(self) -> Child:
        """Start it and remember the child; whether it serves yet is another question."""
        self._log_from = 0 if self.log is None else _size(self.log)
        self.child = self.launch()
        return self.child

    def stop(self) -> None:
        """End it in order and return when it is gone; harmless when it does not run."""
        if self.child is None:
            return
        stopping = Stopping(self.child, self.stop_steps)
        while not stopping.advance(now=time.monotonic(), hurry=False):
            time.sleep(_POLL_SECONDS)
        self.forget()

    def forget(self) -> None:
        """Put away what is left of a child that was stopped."""
        self.child = None

    def last_words(self) -> str:
        """Return the end of its log since it was last started as one line, for a message about its death."""
        return "" if self.log is None else tail(self.log, since=self._log_from)


class Command(Program):
    """A program that needs no preparation."""

    def __init__(self, *, name: str, launch: Launch, stop_steps: Sequence[StopStep] = GENTLE_STOP) -> None:
        super().__init__(name=name, log=launch.log, stop_steps=stop_steps)
        self._launch = launch

    def launch(self) -> Child:
        """Start it once."""
        return Child(self._launch)


def tail(log: Path, *, since: int = 0) -> str:
    """Return the last few lines of a log as one line of bounded length, empty if there is none.

    ``since`` is an offset in bytes; a log that is shorter was begun anew and counts from its beginning.
    """
    size = _size(log)
    if size == 0:
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0 if size < since else since, size - _TAIL_BYTES))
        text = stream.read().decode(errors="replace")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    while len(lines) > _TAIL_LINES or (len(lines) > 1 and len(" | ".join(lines)) > _TAIL_CHARACTERS):
        del lines[0]
    return " | ".join(lines)[:_TAIL_CHARACTERS]


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0


def describe_end(status: int) -> str:
    """Say in words how a process ended: ``exit code 3`` or ``SIGKILL``."""
    if status >= 0:
        return f"exit code {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _open_log(log: Path) -> BinaryIO:
    """Open for appending; one that has grown large is set aside first, over the one set aside before."""
    if _size(log) > _LOG_LIMIT_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
