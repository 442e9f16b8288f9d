import asyncio

import pytest

from tests.unit.virtual import run
from web.coalesce import Coalescer


class Call:
    """A call that takes a second and is told apart by what it was called with."""

    def __init__(self):
        self.batches = []
        self.at_once = 0
        self.fails = set()

    async def __call__(self, items):
        self.batches.append(items)
        self.at_once += 1
        assert self.at_once == 1, "two calls in flight"
        try:
            await asyncio.sleep(1)
        finally:
            self.at_once -= 1
        if self.fails & set(items):
            raise LookupError(*sorted(self.fails & set(items)))
        return [item * 10 for item in items]


def test_what_is_asked_for_in_one_turn_of_the_loop_goes_together():
    async def main():
        call = Call()
        ask = Coalescer(call)
        assert await asyncio.gather(*(ask(item) for item in range(5))) == [0, 10, 20, 30, 40]
        assert call.batches == [[0, 1, 2, 3, 4]]

    run(main())


def test_what_is_asked_for_meanwhile_goes_with_the_next_call():
    async def main():
        call = Call()
        ask = Coalescer(call)
        first = asyncio.create_task(ask(1))
        await asyncio.sleep(0.5)
        rest = [asyncio.create_task(ask(item)) for item in (2, 3)]
        assert await asyncio.gather(first, *rest) == [10, 20, 30]
        assert call.batches == [[1], [2, 3]]

    run(main())


def test_the_same_item_is_asked_for_as_often_as_it_was_given():
    async def main():
        call = Call()
        ask = Coalescer(call)
        assert await asyncio.gather(ask(1), ask(1)) == [10, 10]
        assert call.batches == [[1, 1]]

    run(main())


def test_a_call_takes_no_more_than_the_most():
    async def main():
        call = Call()
        ask = Coalescer(call, most=3)
        assert await asyncio.gather(*(ask(item) for item in range(7))) == [item * 10 for item in range(7)]
        assert call.batches == [[0, 1, 2], [3, 4, 5], [6]]

    run(main())


def test_a_failure_is_everyones_of_its_call_and_no_one_elses():
    async def main():
        call = Call()
        call.fails = {2}
        ask = Coalescer(call, most=2)
        results = await asyncio.gather(*(ask(item) for item in (1, 2, 3)), return_exceptions=True)
        assert [type(result) for result in results] == [LookupError, LookupError, int]
        assert results[2] == 30

    run(main())


def test_it_goes_on_after_a_failure():
    async def main():
        call = Call()
        call.fails = {1}
        ask = Coalescer(call)
        with pytest.raises(LookupError):
            await ask(1)
        assert await ask(2) == 20

    run(main())


@pytest.mark.parametrize("fails", [True, False])
def test_one_that_was_given_up_does_not_disturb_the_others(fails):
    async def main():
        call = Call()
        call.fails = {3} if fails else set()
        ask = Coalescer(call)
        given_up, kept = asyncio.create_task(ask(1)), asyncio.create_task(ask(2 if not fails else 3))
        await asyncio.sleep(0.5)
        given_up.cancel()
        later = asyncio.create_task(ask(4))
        results = await asyncio.gather(given_up, kept, later, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert isinstance(results[1], LookupError) if fails else results[1] == 20
        assert results[2] == 40
        assert call.batches == [[1, 3 if fails else 2], [4]]

    run(main())


def test_the_one_whose_asking_started_the_call_may_be_given_up():
    async def main():
        call = Call()
        ask = Coalescer(call)
        starter = asyncio.create_task(ask(1))
        await asyncio.sleep(0)
        starter.cancel()
        assert await ask(2) == 20
        assert starter.cancelled()

    run(main())


def test_idle_it_holds_nothing():
    async def main():
        call = Call()
        ask = Coalescer(call)
        await ask(1)
        await asyncio.sleep(5)
        assert len(asyncio.all_tasks()) == 1
        assert await ask(2) == 20
        assert call.batches == [[1], [2]]

    run(main())
