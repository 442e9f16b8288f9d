"""Settings of the web server; ``dibs web`` starts it with them and adds the address."""  # noqa: N999 - gunicorn's own name for it

import os
from typing import Any

from gunicorn.glogging import Logger  # type: ignore[import-untyped]

from deploy import logs

# Here and not in a hook: the first line is logged before any hook runs. Workers are forks and inherit it.
logs.configure()


class JsonLogger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Gunicorn's own lines, handed to the root logger. Without handlers of its own no line comes twice."""

    def setup(self, cfg: Any) -> None:  # noqa: ANN401
        """Take the level from the settings, also after a reload."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


wsgi_app = "web.app:get_app()"
worker_class = "deploy.asgi_worker.Worker"
workers = int(os.environ.get("DIBS_WEB") or 1)
# Longer than DIBS_WAIT_MS by default, so that whoever waits for an outcome gets it.
graceful_timeout = 15
# Longer than clients keep an idle connection (httpx 5 s, aiohttp 15 s): else a request meets a server that just closes.
keepalive = 75
# Its default path is one for all instances of a user.
control_socket_disable = True
asgi_loop = "auto"
logger_class = JsonLogger
accesslog = None
errorlog = "-"
proc_name = "dibs-web"
