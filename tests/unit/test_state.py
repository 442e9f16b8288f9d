"""The state folder: who may use it, what it keeps, and how others find the stack that runs on it."""

import os
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from deploy.folders import DeployError, locked
from deploy.state import Addresses, StateFolder, fresh_secrets, require_free_port
from models.settings import parse_secret_keys

DEADLINE_SECONDS = 30.0


def addresses(**changes) -> Addresses:
    known = {
        "http": "http://127.0.0.1:8080",
        "redis": "unix://:word@/somewhere",
        "database": "postgresql://service",
        "database_owner": "postgresql://owner",
        "secret_keys": "k1:" + "s" * 43,
    }
    return Addresses(**known | changes)


class TestStateFolder:
    def test_its_secrets_are_made_once_and_private(self, tmp_path):
        state = StateFolder(tmp_path / "deep" / "er" / ".dibs")
        with state.hold() as first:
            pass
        with state.hold() as second:
            pass
        assert first == second != fresh_secrets()
        assert state.path.stat().st_mode & 0o777 == 0o700
        assert {entry.name: entry.stat().st_mode & 0o777 for entry in state.path.iterdir()} == {
            "format.json": 0o600,
            "lock": 0o600,
            "secrets.json": 0o600,
        }
        (key,) = parse_secret_keys(first.secret_keys)
        assert len(key.secret) == 43
        assert len({first.valkey, *msgspec.structs.astuple(first.postgres), first.secret_keys}) == 5

    def test_secrets_and_addresses_do_not_show_in_a_repr(self):
        secrets = fresh_secrets()
        assert secrets.valkey not in repr(secrets)
        assert secrets.postgres.admin not in repr(secrets.postgres)
        assert "word" not in repr(addresses())

    def test_a_second_holder_is_told_who_holds_it(self, tmp_path):
        with StateFolder(tmp_path).hold(), pytest.raises(DeployError, match=f"in use by process {os.getpid()}: "):
            hold_and_leave(tmp_path)

    def test_a_killed_holder_holds_nothing(self, tmp_path):
        code = """
            import signal, sys
            from pathlib import Path
            from deploy.state import Addresses, StateFolder
            state = StateFolder(Path(sys.argv[1]))
            with state.hold():
                state.publish(Addresses(http="h", redis="r", database="d", database_owner="o", secret_keys="k"))
                print("held", flush=True)
                signal.pause()
        """
        holder = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert holder.stdout.readline() == "held\n"
            assert StateFolder(tmp_path).running().http == "h"
            with pytest.raises(DeployError, match=f"in use by process {holder.pid}: "):
                hold_and_leave(tmp_path)
        finally:
            holder.kill()
            holder.communicate()
        assert StateFolder(tmp_path).running() is None
        with StateFolder(tmp_path).hold():
            assert not (tmp_path / "addresses.json").exists()

    def test_addresses_are_found_while_it_runs_and_up(self, tmp_path):
        holder, reader = StateFolder(tmp_path), StateFolder(tmp_path)
        assert reader.running() is None
        with holder.hold():
            assert reader.running() is None
            holder.publish(addresses())
            assert reader.running() == addresses()
            assert (tmp_path / "addresses.json").stat().st_mode & 0o777 == 0o600
            assert reader.running().environment() == {
                "DIBS_DATABASE_URL": "postgresql://service",
                "DIBS_REDIS_URL": "unix://:word@/somewhere",
                "DIBS_SECRET_KEYS": "k1:" + "s" * 43,
            }
        assert reader.running() is None

    def test_a_reader_does_not_turn_a_starter_away(self, tmp_path):
        with StateFolder(tmp_path).hold():
            pass
        with ThreadPoolExecutor(1) as pool, ExitStack() as reading:
            reading.enter_context(locked(tmp_path / "lock", seconds=0, shared=True))
            starter = pool.submit(hold_and_leave, tmp_path)
            assert wait([starter], timeout=0.1).not_done
            reading.close()
            starter.result(DEADLINE_SECONDS)

    def test_another_versions_folder_is_refused_by_holder_and_reader(self, tmp_path):
        state = StateFolder(tmp_path)
        with state.hold():
            state.publish(addresses())
            (tmp_path / "format.json").write_text('{"format": 7}')
            with pytest.raises(DeployError, match=r"another version of dibs \(layout 7, here 1\)"):
                state.running()
        with pytest.raises(DeployError, match=r"another version of dibs \(layout 7, here 1\)"):
            hold_and_leave(tmp_path)

    def test_a_damaged_file_is_named(self, tmp_path):
        hold_and_leave(tmp_path)
        (tmp_path / "secrets.json").write_text("{")
        with pytest.raises(DeployError, match=r"secrets\.json is damaged"):
            hold_and_leave(tmp_path)

    def test_a_folder_with_other_files_is_left_alone(self, tmp_path):
        tmp_path.chmod(0o755)
        (tmp_path / "thesis.txt").touch()
        with pytest.raises(DeployError, match="holds other files"):
            hold_and_leave(tmp_path)
        with pytest.raises(DeployError, match="is not a folder"):
            hold_and_leave(tmp_path / "thesis.txt")
        assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
        assert tmp_path.stat().st_mode & 0o777 == 0o755

    def test_one_whose_making_was_cut_short_is_completed(self, tmp_path):
        for leftover in ("lock", ".format.json.abc"):
            (tmp_path / leftover).touch()
        hold_and_leave(tmp_path)
        assert (tmp_path / "secrets.json").exists()

    def test_another_users_folder_is_refused(self, tmp_path, monkeypatch):
        hold_and_leave(tmp_path)
        stranger = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: stranger)
        with pytest.raises(DeployError, match=rf"cannot be used by this user \(uid {stranger}\)"):
            hold_and_leave(tmp_path)


def hold_and_leave(folder: Path) -> None:
    with StateFolder(folder).hold():
        pass


class TestPort:
    def test_a_taken_port_is_named_with_the_option(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with pytest.raises(DeployError, match=rf"port {port} on 127\.0\.0\.1 is in use: .*--port \(DIBS_PORT\)"):
                require_free_port("127.0.0.1", port)
        require_free_port("127.0.0.1", port)

    def test_a_foreign_address_is_refused(self):
        with pytest.raises(DeployError, match=r"cannot listen on port 8080 of 192\.0\.2\.1 \("):
            require_free_port("192.0.2.1", 8080)
        with pytest.raises(DeployError, match="is no address to listen on"):
            require_free_port("no such host", 8080)
