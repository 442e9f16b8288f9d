"""A fake Redis that runs the real scripts through the two classes that the processes use."""

import asyncio
import json

import fakeredis

from models.settings import Settings
from models.window.back import Back, Reservation
from models.window.front import Front
from tests.builders import submission, task_key_of, uuid7_at, window_id

LAB = "space:lab"
LEASE_MS = 3000
TTL_MS = 15_000
QUEUE = "rq:queue:dibs"
W1, W2, W3 = (window_id(number=number) for number in (1, 2, 3))


class Clock:
    """Redis's clock, in milliseconds; it stands still until it is moved."""

    def __init__(self):
        self.ms = 1_782_907_200_000

    def __call__(self):
        return self.ms / 1000


class World:
    def __init__(self):
        self.server = fakeredis.FakeServer(server_type="valkey")
        self.redis = fakeredis.FakeRedis(server=self.server, decode_responses=False)

    def front(self, call, *, instance="i1", **limits):
        """Await one call of a front with a connection of its own."""
        settings = Settings(database_url="-", redis_url="-", secret_keys=(), **limits)

        async def main():
            front = Front(fakeredis.FakeAsyncRedis(server=self.server), settings, instance=instance)
            try:
                return await call(front)
            finally:
                await front.aclose()

        return asyncio.run(main())

    def append(self, *sent, again=False, **settings):
        _, appended = self.front(lambda front: front.append([(one, again) for one in sent]), **settings)
        return appended

    def back(self, *, window_max=500):
        return Back(self.redis, lease_ms=LEASE_MS, window_ttl_ms=TTL_MS, window_max=window_max)

    def open_entries(self, partition=LAB):
        """(number, intents) of each entry that waits."""
        found = self.redis.lrange(f"dibs:open:{partition}", 0, -1)
        return [tuple(int(part) for part in entry.split(b" ", 2)[:2]) for entry in found]

    def jobs(self):
        """The partitions of the queued jobs."""
        ids = [job_id.decode() for job_id in self.redis.lrange(QUEUE, 0, -1)]
        return [json.loads(self.redis.hget(f"rq:job:{job_id}", "data"))[2][0] for job_id in ids]

    def state(self, partition=LAB):
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(f"dibs:p:{partition}").items()}

    def dirty(self):
        return [partition.decode() for partition in self.redis.zrange("dibs:dirty", 0, -1)]

    def dump(self):
        """All that this Redis holds, with how long each key has to live."""
        readers = {
            b"string": self.redis.get,
            b"hash": self.redis.hgetall,
            b"list": lambda key: self.redis.lrange(key, 0, -1),
            b"set": self.redis.smembers,
            b"zset": lambda key: self.redis.zrange(key, 0, -1, withscores=True),
        }
        return {key: (readers[self.redis.type(key)](key), self.redis.pttl(key) > 0) for key in self.redis.scan_iter()}


def several(count, *, first=1, **fields):
    return [submission(number=number, **fields) for number in range(first, first + count)]


def finish(back, closed, *, reservations=(), replies=None, partition=LAB):
    back.finish(partition, closed.id, reservations=reservations, entries=closed.entries, replies=replies or {})


def reservation(title, *, window=W1, number=1):
    return Reservation.of(LAB, task_key_of(name=title), window, uuid7_at(number=number))
