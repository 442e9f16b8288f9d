"""Private folders and files, locks that the kernel keeps, and sockets within the length a path may have."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# sun_path holds 108 bytes on Linux and 104 elsewhere, the closing NUL included.
SOCKET_PATH_LIMIT_BYTES = 107 if sys.platform == "linux" else 103
_POLL_SECONDS = 0.02
_NOTE = "socket-folder"
_PLAIN = re.compile(r"[A-Za-z0-9/._~-]+")


class DeployError(Exception):
    """Something that keeps dibs from running; the message is one line that says what to do."""


class LockHeldError(Exception):
    """Somebody else holds a lock."""


def make_private(folder: Path) -> None:
    """Make a folder of ours, with its missing parents, and close it to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_private(path: Path, text: str, *, replace: bool = True) -> bool:
    """Write a file for this user alone, whole or not at all, also through a crash.

    Without ``replace`` a file that is there stays as it is; of several writers at once one succeeds. Returns
    whether this text was written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            fresh.replace(path)
        else:
            path.hardlink_to(fresh)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, seconds: float, shared: bool = False) -> Iterator[int]:
    """Hold a lock on the file (made if missing) and yield its descriptor.

    The lock belongs to the open file, not to the process: a child that inherits the descriptor keeps it held
    after this context has ended, until the last such child is gone, however it goes.

    Raises:
        LockHeldError: somebody else held it all that time.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + seconds
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            if time.monotonic() >= until:
                raise LockHeldError(f"{path} is held by another process")
            time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def socket_folder(folder: Path, socket_name: str) -> Path:
    """Return where a socket of that name goes: the folder, or a short private one if its path would not do.

    It has to be short, and free of the characters (a comma, a colon, a question mark) that some reader of
    addresses takes for something else. The private one is made once in the temporary folder and remembered
    beside the data, so that a crash leaves none behind for every start.

    Raises:
        DeployError: no folder will do.
    """
    if _serves(folder / socket_name):
        return folder
    note = folder / _NOTE
    with suppress(FileNotFoundError):
        known = Path(note.read_text())
        if _serves(known / socket_name) and _is_ours(known):
            return known
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes a private folder in it
        if _serves(Path(parent, "dibs-12345678", socket_name)):
            short = tempfile.mkdtemp(prefix="dibs-", dir=parent)
            write_private(note, short)
            return Path(short)
    raise DeployError(f"{folder} is too long or odd a path for a socket: choose another --state folder")


def remove_socket_folder(folder: Path) -> None:
    """Remove the other folder of :func:`socket_folder`, if one was made and is empty."""
    note = folder / _NOTE
    with suppress(OSError):
        known = Path(note.read_text())
        if _is_ours(known):
            known.rmdir()
        note.unlink()


def _serves(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_LIMIT_BYTES and _PLAIN.fullmatch(str(path)) is not None


def _is_ours(folder: Path) -> bool:
    """Tell whether others can neither have made nor enter it: they may write to the temporary folder too."""
    with suppress(FileNotFoundError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return False
