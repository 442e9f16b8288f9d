"""Successful answers to reads, written in one way."""

from __future__ import annotations

import falcon.asgi

from models.rules.outcomes import encode


def answer(resp: falcon.asgi.Response, body: object, *, revision: int | None = None) -> None:
    """Write a body as JSON, with its revision as entity tag if it has one."""
    resp.content_type = "application/json"
    if revision is not None:
        resp.etag = str(revision)
    resp.data = encode(body).encode()
