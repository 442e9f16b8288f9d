"""The settings of a web or worker process, read from the environment once. Contract, section 8."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from models.rules.spaces import Mode


class SettingsError(ValueError):
    """A setting that is missing or malformed; the message is one line for the person who starts the process."""


class SecretKey(msgspec.Struct, frozen=True):
    """A secret under its id; the repr shows the id alone."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"SecretKey({self.id!r})"


WORK_REQUEST_BYTES_MAX: Final = 24_576
"""Longest body of a request to the work exchange; a setting may make it shorter."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a web or worker process needs to know. All durations are milliseconds.

    ``floor`` is the process's own mode: in drain it admits nothing fresh, whatever the mode row says.
    """

    database_url: str
    redis_url: str
    secret_keys: tuple[SecretKey, ...]
    window_ttl_ms: int = 15_000
    lease_ms: int = 3_000
    window_max: int = 500
    window_max_open: int = 10_000
    wait_ms: int = 10_000
    agent_rate_per_second: int = 200
    agent_burst: int = 1_000
    agent_max_open: int = 2_000
    work_request_bytes: int = WORK_REQUEST_BYTES_MAX
    canonical_origin: str = "https://concresca.com"
    workspace_id: str = "commons"
    project_id: str = "commons"
    floor: Mode = Mode.ACTIVE

    def __repr__(self) -> str:
        """Show no address: database and Redis addresses carry passwords."""
        return f"Settings(secret_keys={self.secret_keys!r}, lease_ms={self.lease_ms})"


_NUMBERS: Mapping[str, tuple[str, int]] = {
    "DIBS_WINDOW_TTL_MS": ("window_ttl_ms", 100),
    "DIBS_LEASE_MS": ("lease_ms", 500),
    "DIBS_WINDOW_MAX": ("window_max", 1),
    "DIBS_WINDOW_MAX_OPEN": ("window_max_open", 1),
    "DIBS_WAIT_MS": ("wait_ms", 1),
    "DIBS_AGENT_RATE": ("agent_rate_per_second", 1),
    "DIBS_AGENT_BURST": ("agent_burst", 1),
    "DIBS_AGENT_MAX_OPEN": ("agent_max_open", 1),
    "DIBS_WORK_REQUEST_BYTES": ("work_request_bytes", 1_024),
}
_NAMES: Mapping[str, str] = {
    "DIBS_CANONICAL_ORIGIN": "canonical_origin",
    "DIBS_WORKSPACE_ID": "workspace_id",
    "DIBS_PROJECT_ID": "project_id",
}
_NAME_CHARACTERS = 200
_LARGEST = 2**31 - 1
_DIGITS = len(str(_LARGEST))


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this process.

    Raises:
        SettingsError: an address or the secret keys are missing, or a value is malformed.
    """
    env = os.environ if environ is None else environ
    numbers = {field: _number(env[name], name, least) for name, (field, least) in _NUMBERS.items() if name in env}
    if numbers.get("work_request_bytes", 0) > WORK_REQUEST_BYTES_MAX:
        raise SettingsError(f"DIBS_WORK_REQUEST_BYTES must be at most {WORK_REQUEST_BYTES_MAX}")
    floor = _mode(env.get("CONCRESCA_WORK_MODE"))
    names = {field: _name(env[name], name) for name, field in _NAMES.items() if name in env}
    found = Settings(
        database_url=_required(env, "DIBS_DATABASE_URL"),
        redis_url=_required(env, "DIBS_REDIS_URL"),
        secret_keys=parse_secret_keys(_required(env, "DIBS_SECRET_KEYS")),
    )
    return msgspec.structs.replace(found, **numbers, **names, floor=floor)


def parse_secret_keys(text: str) -> tuple[SecretKey, ...]:
    """Return the keys of a comma list of ``id:secret``; the first one signs, all verify.

    Raises:
        SettingsError: an empty list, a malformed or repeated id, or a secret of less than 32 characters.
    """
    keys: dict[str, SecretKey] = {}
    for number, part in enumerate(text.split(","), start=1):
        key_id, separator, secret = part.strip().partition(":")
        if not separator or not key_id.isalnum() or not key_id.isascii():
            raise SettingsError(f"DIBS_SECRET_KEYS: entry {number} is not of the form id:secret")
        if len(secret) < 32:  # noqa: PLR2004 - an HMAC-SHA-256 key's worth of characters
            raise SettingsError(f"DIBS_SECRET_KEYS: the secret of {key_id!r} has less than 32 characters")
        if key_id in keys:
            raise SettingsError(f"DIBS_SECRET_KEYS: the id {key_id!r} stands twice")
        try:
            keys[key_id] = SecretKey(key_id, secret.encode())
        except UnicodeEncodeError:
            raise SettingsError(f"DIBS_SECRET_KEYS: the secret of {key_id!r} is not UTF-8") from None
    return tuple(keys.values())


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set")
    return value


def _mode(text: str | None) -> Mode:
    """Return the floor: a value that is not exactly one of two stops the process before it serves anything."""
    if text is None:
        return Mode.ACTIVE
    try:
        return Mode(text)
    except ValueError:
        raise SettingsError("CONCRESCA_WORK_MODE must be exactly active or drain, or not be set") from None


def _name(text: str, name: str) -> str:
    """Return a name that digests are made with: it never changes as long as one of them is kept."""
    if not 0 < len(text) <= _NAME_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(f"{name} must be 1 to {_NAME_CHARACTERS} visible ASCII characters")
    return text


def _number(text: str, name: str, least: int) -> int:
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit() and len(digits) <= _DIGITS) or not least <= int(digits) <= _LARGEST:
        raise SettingsError(f"{name} must be a whole number from {least} to {_LARGEST}")
    return int(text)
