"""The state folder (``.dibs``): who runs on it, its secrets, and where its servers answer. Contract 5 and 8.

``lock`` is held, with the pid in it, by the stack that runs; ``format.json`` names the layout's version;
``secrets.json`` is made once; ``addresses.json`` is there while the stack is up; ``valkey`` and ``postgres`` are
the servers' folders.
"""

from __future__ import annotations

import errno
import os
import secrets as random_words
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from deploy.folders import DeployError, LockHeldError, locked, make_private, write_private
from deploy.postgres import PostgresPasswords

FORMAT: Final = 1
_LOCK: Final = "lock"
_FORMAT: Final = "format.json"
_SECRETS: Final = "secrets.json"
_ADDRESSES: Final = "addresses.json"
# A reader holds the lock for a moment to see whether anybody does: that alone must not turn a starter away.
_LOCK_SECONDS: Final = 0.5

T = TypeVar("T")


class StateError(DeployError):
    """A state folder that cannot be used, or a port that cannot be had."""


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """What a stack keeps for its life. ``secret_keys`` is the value of DIBS_SECRET_KEYS."""

    valkey: str
    postgres: PostgresPasswords
    secret_keys: str

    def __repr__(self) -> str:
        return "Secrets(...)"


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stack answers: HTTP, Valkey, and PostgreSQL as the service and as the owner of the schema.

    An address of the two servers holds its password.
    """

    http: str
    redis: str
    database: str
    database_owner: str
    secret_keys: str

    def __repr__(self) -> str:
        return f"Addresses(http={self.http!r})"

    def environment(self) -> dict[str, str]:
        """Return the variables under which web, worker and the commands look for these."""
        return {
            "DIBS_DATABASE_URL": self.database,
            "DIBS_REDIS_URL": self.redis,
            "DIBS_SECRET_KEYS": self.secret_keys,
        }


class _Format(msgspec.Struct, frozen=True):
    format: int


class StateFolder:
    """A state folder, for the one process that runs on it and for those that look for it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def valkey(self) -> Path:
        """Valkey's folder."""
        return self.path / "valkey"

    @property
    def postgres(self) -> Path:
        """PostgreSQL's folder."""
        return self.path / "postgres"

    @contextmanager
    def hold(self) -> Iterator[Secrets]:
        """Take the folder for this process alone (made with mode 0700 if missing) and yield its secrets.

        Raises:
            StateError: a stack runs on it, it is another version's or another user's, or no state folder.
        """
        self._prepare()
        with ExitStack() as stack:
            try:
                descriptor = stack.enter_context(locked(self.path / _LOCK, seconds=_LOCK_SECONDS))
            except LockHeldError:
                raise StateError(
                    f"{self.path} is in use by process {self._holder()}: stop that,"
                    " or choose another folder with --state (DIBS_STATE)"
                ) from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            write_private(self.path / _FORMAT, _encode(_Format(FORMAT)), replace=False)
            self._check_format()
            self._withdraw()
            stack.callback(self._withdraw)
            write_private(self.path / _SECRETS, _encode(fresh_secrets()), replace=False)
            yield self._read(_SECRETS, Secrets)

    def publish(self, addresses: Addresses) -> None:
        """Let the other commands find this stack; for its holder, who takes it back at the end."""
        write_private(self.path / _ADDRESSES, _encode(addresses))

    def running(self) -> Addresses | None:
        """Return where the stack of this folder answers; None if there is none, or it is not up yet.

        Raises:
            StateError: the folder is another version's or another user's.
        """
        try:
            (self.path / _ADDRESSES).stat()
            with locked(self.path / _LOCK, seconds=0, shared=True):
                # Nobody holds it: a stack that was killed left its addresses behind.
                return None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise self._foreign() from None
        except LockHeldError:
            self._check_format()
            try:
                return self._read(_ADDRESSES, Addresses)
            except FileNotFoundError:
                # It began to stop between the two looks.
                return None

    def _prepare(self) -> None:
        try:
            if self.path.exists():
                if self.path.stat().st_uid != os.geteuid():
                    raise self._foreign()
                if not self._is_state():
                    raise StateError(
                        f"{self.path} holds other files: choose an empty or a new folder with --state (DIBS_STATE)"
                    )
            make_private(self.path)
        except (FileExistsError, NotADirectoryError):
            raise StateError(f"{self.path} is not a folder: choose another folder with --state (DIBS_STATE)") from None
        except PermissionError:
            raise self._foreign() from None

    def _is_state(self) -> bool:
        """Tell a state folder, also one whose making was cut short, from anything a user may have named by mistake."""
        if (self.path / _FORMAT).exists():
            return True
        return all(entry.name == _LOCK or entry.name.startswith(f".{_FORMAT}.") for entry in self.path.iterdir())

    def _foreign(self) -> StateError:
        return StateError(
            f"{self.path} cannot be used by this user (uid {os.geteuid()}): run as the user it belongs to,"
            " or choose another folder with --state (DIBS_STATE)"
        )

    def _holder(self) -> str:
        return (self.path / _LOCK).read_text().strip() or "(starting)"

    def _check_format(self) -> None:
        found = self._read(_FORMAT, _Format).format
        if found != FORMAT:
            raise StateError(
                f"{self.path} was written by another version of dibs (layout {found}, here {FORMAT}):"
                " use that version, or another --state folder"
            )

    def _withdraw(self) -> None:
        (self.path / _ADDRESSES).unlink(missing_ok=True)

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.path / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            raise StateError(
                f"{path} is damaged ({error}): restore it, or choose another folder with --state (DIBS_STATE)"
            ) from None


def fresh_secrets() -> Secrets:
    """Return new random secrets of 256 bits each."""
    passwords = PostgresPasswords(admin=_word(), owner=_word(), service=_word())
    return Secrets(valkey=_word(), postgres=passwords, secret_keys=f"k{random_words.token_hex(4)}:{_word()}")


def require_free_port(host: str, port: int) -> None:
    """Return if something may listen there.

    Raises:
        StateError: the port is taken or reserved, or the host is not one of this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StateError(f"{host} is no address to listen on ({error}): choose another --host") from None
    problems = [_bind_problem(family, address) for family, _, _, _, address in found]
    if errno.EADDRINUSE in problems:
        raise StateError(
            f"port {port} on {host} is in use: stop what listens there, or choose another with --port (DIBS_PORT)"
        )
    if None not in problems:
        reason = os.strerror(next(each for each in problems if each))
        raise StateError(f"cannot listen on port {port} of {host} ({reason}): choose another --port or --host")


def _bind_problem(family: int, address: tuple[object, ...]) -> int | None:
    """Return the error number of an attempt to bind, None if it went well."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the server itself will: lingering connections of an earlier one are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.errno
    return None


def _word() -> str:
    return random_words.token_urlsafe(32)


def _encode(value: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"
