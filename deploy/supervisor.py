"""Keeps programs running: starts again what dies, with a growing pause, and stops all of them in order.

One thread, no busy loop: it sleeps until a child ends, a signal arrives or a pause is over. Contract 8.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Final, Self

import msgspec

from deploy.folders import DeployError
from deploy.program import Program, Stopping, describe_end

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOP_POLL_SECONDS: Final = 0.05
_LONGEST_SLEEP_SECONDS: Final = 1.0


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before a program is started again. All in seconds.

    The first pause is short, each further one doubles up to ``longest``; a life of ``good_life`` or more makes the
    next one the first again.
    """

    first: float = 0.2
    longest: float = 30.0
    good_life: float = 10.0

    def after(self, *, previous: float | None, lived: float) -> float:
        """Return the pause after a life of that length, ``previous`` being the pause before it (None: none)."""
        if previous is None or lived >= self.good_life:
            return self.first
        return min(previous * 2, self.longest)


class StopRequested(KeyboardInterrupt):
    """Raised by a stop signal outside of :meth:`Supervisor.step`, so that a start does not have to be sat out."""


class _Ward(msgspec.Struct, kw_only=True):
    """A program in the supervisor's care: when it was started, or when it will be."""

    program: Program
    stage: int
    started: float
    pause: float | None = None
    due: float | None = None


class Supervisor:
    """Owns the stop signals (SIGTERM, SIGINT, SIGHUP) and the programs' lives, in the main thread, as a context.

    ``report`` gets one line for each death and each failed start. Leaving the context stops all programs, the
    highest stage first and all of one stage at once; a second SIGINT then ends the waiting and kills what is left.
    A stop signal between the context's start and its end leaves the context quietly, whatever the code in it was
    doing; ``stop_requested`` tells afterwards.
    """

    def __init__(self, *, report: Callable[[str], None], pauses: Pauses | None = None) -> None:
        self._report = report
        self._pauses = pauses or Pauses()
        self._wards: list[_Ward] = []
        self._interruptible = True
        self._interrupts = 0
        self.stop_requested = False

    def start(self, program: Program, *, stage: int) -> None:
        """Start a program and keep it running from now on.

        Raises:
            DeployError: the first start failed; it is not taken into care.
        """
        ward = _Ward(program=program, stage=stage, started=time.monotonic())
        # First in care, then started: a stop signal between the two must not leave it behind.
        self._wards.append(ward)
        try:
            program.spawn()
        except DeployError:
            self._wards.remove(ward)
            raise

    def step(self, seconds: float) -> bool:
        """Care for the programs once, after sleeping at most that long; return False when a stop was requested."""
        self._interruptible = False
        try:
            if not self.stop_requested:
                self._sleep(min(seconds, self._next_due()))
            if not self.stop_requested:
                self._care()
            return not self.stop_requested
        finally:
            self._interruptible = True

    def run(self) -> None:
        """Care for the programs until a stop is requested."""
        while self.step(_LONGEST_SLEEP_SECONDS):
            pass

    def __enter__(self) -> Self:
        self._awake, self._wake = os.pipe()
        for end in (self._awake, self._wake):
            os.set_blocking(end, False)
        self._old_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        # SIGCHLD needs a handler, or the wake-up descriptor is not written.
        self._old_handlers = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, _nothing)}
        for number in _STOP_SIGNALS:
            # Who is told to ignore SIGHUP, by nohup, goes on doing so. A shell without job control has its background
            # commands ignore SIGINT; that is no wish of anyone's, and this process ends by it all the same.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._old_handlers[number] = signal.signal(number, self._on_stop_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._interruptible = False
        self._interrupts = 0
        try:
            self._stop_all()
        finally:
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_wake)
            os.close(self._awake)
            os.close(self._wake)
        return isinstance(error, StopRequested)

    def _on_stop_signal(self, number: int, _frame: FrameType | None) -> None:
        self.stop_requested = True
        if number == signal.SIGINT:
            self._interrupts += 1
        if self._interruptible:
            # Once: what the code in the context does about it is not to be interrupted again.
            self._interruptible = False
            raise StopRequested

    def _care(self) -> None:
        now = time.monotonic()
        for ward in self._wards:
            if ward.due is not None:
                if now >= ward.due:
                    self._start_again(ward, now=now)
            elif ward.program.child is not None:
                status = ward.program.child.poll()
                if status is not None:
                    self._plan(ward, now=now, what=f"ended, {describe_end(status)}", words=ward.program.last_words())

    def _start_again(self, ward: _Ward, *, now: float) -> None:
        ward.due, ward.started = None, now
        try:
            ward.program.spawn()
        except DeployError as error:
            self._plan(ward, now=time.monotonic(), what="did not start", words=str(error))

    def _plan(self, ward: _Ward, *, now: float, what: str, words: str) -> None:
        ward.pause = self._pauses.after(previous=ward.pause, lived=now - ward.started)
        ward.due = now + ward.pause
        end = f": {words}" if words else ""
        self._report(f"{ward.program.name} {what}; starting it again in {ward.pause:g} s{end}")

    def _next_due(self) -> float:
        now = time.monotonic()
        dues = [ward.due - now for ward in self._wards if ward.due is not None]
        return max(0.0, min(dues, default=_LONGEST_SLEEP_SECONDS))

    def _sleep(self, seconds: float) -> None:
        select.select([self._awake], [], [], seconds)
        try:
            while os.read(self._awake, 512):
                pass
        except BlockingIOError:
            return

    def _stop_all(self) -> None:
        for stage in sorted({ward.stage for ward in self._wards}, reverse=True):
            self._stop_stage([ward.program for ward in self._wards if ward.stage == stage])

    def _stop_stage(self, programs: Sequence[Program]) -> None:
        open_ends = [
            (program, Stopping(program.child, program.stop_steps)) for program in programs if program.child is not None
        ]
        while open_ends:
            hurry, now = self._interrupts > 0, time.monotonic()
            ended = [program for program, stopping in open_ends if stopping.advance(now=now, hurry=hurry)]
            for program in ended:
                program.forget()
            open_ends = [(program, stopping) for program, stopping in open_ends if program not in ended]
            if open_ends:
                self._sleep(_STOP_POLL_SECONDS)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Be there."""
