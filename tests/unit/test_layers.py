"""The layers hold, and the tool that says so would say otherwise."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("models", "web", "worker", "deploy")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

PLANTED = {
    "web/planted.py": ("import worker.jobs", "web.planted -> worker.jobs"),
    "worker/planted.py": ("from web import intake", "worker.planted -> web.intake"),
    "web/resources/planted.py": ("from deploy.state import fresh_secrets", "web.resources.planted -> deploy.state"),
    "models/store/planted.py": ("import models.window.codec", "models.store.planted -> models.window.codec"),
    "models/window/planted.py": (
        "def late():\n    from models.store import reads\n    return reads",
        "models.window.planted -> models.store.reads",
    ),
    "models/store/planted_up.py": ("from worker.faults import classify", "models.store.planted_up -> worker.faults"),
    "models/rules/planted_clock.py": ("import time", "models.rules.planted_clock -> time"),
    "models/rules/planted_chance.py": ("from random import random", "models.rules.planted_chance -> random"),
    "models/rules/planted_sql.py": ("from sqlalchemy import text", "models.rules.planted_sql -> sqlalchemy"),
    "models/rules/planted_redis.py": ("import redis.asyncio", "models.rules.planted_redis -> redis"),
    "models/rules/planted_log.py": ("import structlog", "models.rules.planted_log -> structlog"),
    "models/rules/planted_settings.py": (
        "from models import settings",
        "models.rules.planted_settings -> models.settings",
    ),
    "models/rules/planted_ids.py": ("from models.ids import uuid7", "models.rules.planted_ids -> models.ids"),
}


def lint(folder):
    """Run the linter over a tree in a process of its own: in this one the packages are already imported."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache", "--no-logo"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", "NO_COLOR": "1"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """What the linter says of a copy of the tree in which each planted module breaks one rule."""
    copy = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path, (code, _) in PLANTED.items():
        (copy / path).write_text(code + "\n", encoding="utf-8")
    return lint(copy)


def test_the_tree_keeps_its_layers():
    status, said = lint(ROOT)
    assert status == 0, said
    assert ", 0 broken" in said


def test_a_planted_violation_fails_the_build(broken):
    status, said = broken
    assert status == 1, said
    assert " 0 broken" not in said


@pytest.mark.parametrize("path", sorted(PLANTED))
def test_each_planted_violation_is_named(broken, path):
    _, said = broken
    assert PLANTED[path][1] in " ".join(said.split())
