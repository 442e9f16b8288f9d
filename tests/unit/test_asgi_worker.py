"""What the web server's worker takes over from its settings."""

from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.workers.gasgi import ASGIWorker

from deploy.asgi_worker import Worker


@pytest.mark.parametrize(("arbiters", "own"), [(15, 12), (3, 1)])
def test_it_gives_up_on_requests_before_its_arbiter_kills_it(
    monkeypatch: pytest.MonkeyPatch, arbiters: int, own: int
) -> None:
    """Both begin to count at the same signal, and whoever is killed has shut nothing down."""
    began: list[Any] = []

    def begin(self: ASGIWorker) -> None:
        began.append(self)

    monkeypatch.setattr(ASGIWorker, "init_process", begin)
    config = Config()
    config.set("graceful_timeout", arbiters)
    worker = Worker(0, 0, [], None, 30, config, None)
    try:
        worker.init_process()
        assert began == [worker]
        assert worker.cfg.graceful_timeout == own
    finally:
        worker.tmp.close()
