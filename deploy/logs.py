"""One JSON object a line on stderr, from everything that logs in a process: structlog, gunicorn, RQ, warnings."""

from __future__ import annotations

import logging
import logging.config
import re
from typing import Any, Final

import structlog

# What a message may carry without its author's knowing: a bearer key, and the password of an address or of a
# libpq string. The public part of a key and the address itself stay.
_SECRETS: Final = (
    (re.compile(r"(dibs_[a-z0-9]{8}_)[A-Za-z0-9_-]+"), r"\1***"),
    (re.compile(r"(://[^\s:/@\"\\]*:)[^\s/@\"\\]+(?=@)"), r"\1***"),
    (re.compile(r"(\bpassword=)[^\s&\"\\]+"), r"\1***"),
)


def configure(*, level: int = logging.INFO) -> None:
    """Send all logs of this process to stderr; calling it again changes nothing."""
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "json": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": before,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        structlog.processors.JSONRenderer(),
                        _without_secrets,
                    ],
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"level": level, "handlers": ["stderr"]},
            # Tells of each of its plug-ins when it is imported.
            "loggers": {"alembic": {"level": logging.WARNING}},
        }
    )
    logging.captureWarnings(capture=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def redact(line: str) -> str:
    """Return the line with bearer keys and passwords of addresses masked."""
    for pattern, mask in _SECRETS:
        line = pattern.sub(mask, line)
    return line


def _without_secrets(_logger: object, _method: str, line: Any) -> str:  # noqa: ANN401 - what the renderer made
    return redact(str(line))
