"""Gathers what many requests ask for at the same moment into one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Coalescer(Generic[Item, Result]):
    """One call in flight; whatever is asked for meanwhile goes with the next one.

    ``call`` returns a result for each item, in order. If it raises, all that it was called for raise the same.
    """

    def __init__(self, call: Callable[[list[Item]], Awaitable[Sequence[Result]]], *, most: int = 256) -> None:
        self._call = call
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """Return the item's result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._serve(batch)
        finally:
            self._runner = None

    async def _serve(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._call([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - it is raised where the items came from
            for _, future in batch:
                # One whose request was given up is done already.
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
