"""A worker process that kills or stops itself the first time a step of a window is reached.

``python tests/faulty_worker.py [STEP kill|stop MARKER]``: whichever process creates the file MARKER acts, and writes
its pid into it first; all others with the same marker, and one without arguments, are ordinary workers.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP

from deploy import logs
from models.settings import load
from worker.main import run

SIGNALS = {"kill": SIGKILL, "stop": SIGSTOP}


def probe_of(arguments: list[str]) -> Callable[[str], None]:
    if not arguments:
        return lambda _step: None
    step, action, marker = arguments
    number = SIGNALS[action]

    def probe(reached: str) -> None:
        if reached != step:
            return
        # Written aside and linked, so that nobody ever reads a marker without its pid.
        mine = Path(f"{marker}.{os.getpid()}")
        mine.write_text(str(os.getpid()))
        try:
            Path(marker).hardlink_to(mine)
        except FileExistsError:
            return
        os.kill(os.getpid(), number)

    return probe


if __name__ == "__main__":
    logs.configure()
    run(load(), probe=probe_of(sys.argv[1:]))
