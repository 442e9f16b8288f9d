"""The embedded servers from their real wheels: what they keep, whom they let in, how they end."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from sqlalchemy import create_engine, text

from deploy.folders import DeployError
from deploy.postgres import ADMIN, OWNER, SERVICE, EmbeddedPostgres, PostgresPasswords
from deploy.program import Account, Child, Launch
from deploy.servers import EmbeddedValkey
from deploy.supervisor import Supervisor
from tests.servers import clone_database, drop_database, shared_servers, template_database
from tests.waiting import DEADLINE_SECONDS, is_alive, wait_for

PASSWORDS = PostgresPasswords(admin="admin/word", owner="owner:word", service="service%word")


def is_granted(account: Account) -> bool:
    return Child(Launch(argv=(sys.executable, "-c", ""), account=account)).wait(seconds=DEADLINE_SECONDS) == 0


# The ways to run PostgreSQL that root has on this machine; for everyone else there is at most one.
ROOTS_WAYS = [each for each in (Account.NAMESPACE, Account.CAPABILITY) if os.geteuid() == 0 and is_granted(each)]
ACCOUNTS = ROOTS_WAYS or [Account.ANY]


def new_postgres(folder: Path, **options) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, **{"passwords": PASSWORDS, "durable": False} | options)


def query(url: str, statement: str) -> list[tuple]:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def valkey_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=None, decode_responses=True)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with shared_servers(tmp_path_factory.mktemp("servers")) as pair:
        yield pair


def listening(pid: int) -> list[object]:
    """The TCP addresses a process listens on."""
    return [found.laddr for found in psutil.Process(pid).net_connections(kind="inet")]


class TestValkey:
    def test_keeps_its_data_through_a_stop_and_through_a_kill(self, tmp_path):
        valkey = EmbeddedValkey(tmp_path, password="word")
        with valkey, valkey_client(valkey.url) as client:
            client.set("stopped", 1)
        with valkey, valkey_client(valkey.url) as client:
            client.set("killed", 2)
            valkey.child.send(signal.SIGKILL)
        with valkey, valkey_client(valkey.url) as client:
            assert client.mget("stopped", "killed") == ["1", "2"]

    def test_asks_for_the_password_and_listens_on_its_socket_only(self, servers):
        socket_path = servers.valkey.socket_folder / "valkey.sock"
        client = redis.Redis(unix_socket_path=str(socket_path), retry=None)
        with client, pytest.raises(redis.AuthenticationError):
            client.ping()
        assert listening(servers.valkey.child.pid) == []
        assert socket_path.stat().st_mode & 0o077 == 0

    def test_refuses_writes_rather_than_forgetting_keys(self, servers):
        with valkey_client(servers.valkey.url) as client:
            settings = client.config_get("maxmemory-policy", "appendonly", "save", "appendfsync")
        assert settings == {"maxmemory-policy": "noeviction", "appendonly": "yes", "save": "", "appendfsync": "no"}

    def test_flushes_each_second_where_it_has_to_last(self, tmp_path):
        with EmbeddedValkey(tmp_path, password="word") as valkey, valkey_client(valkey.url) as client:
            assert client.config_get("appendfsync") == {"appendfsync": "everysec"}

    def test_its_files_are_private_and_its_command_line_holds_no_password(self, servers):
        files = [entry for entry in servers.valkey.folder.iterdir() if entry.is_file()]
        assert {entry.name for entry in files} >= {"valkey.conf", "valkey.log", "server.lock"}
        assert [entry.name for entry in files if entry.stat().st_mode & 0o077] == []
        assert servers.valkey.folder.stat().st_mode & 0o777 == 0o700
        password = servers.valkey.url.split(":")[2].split("@")[0]
        assert password not in " ".join(psutil.Process(servers.valkey.child.pid).cmdline())

    def test_a_damaged_file_is_told_with_the_end_of_the_log(self, tmp_path):
        valkey = EmbeddedValkey(tmp_path, password="word")
        with valkey:
            pass
        for base in (tmp_path / "appendonlydir").glob("*.base.rdb"):
            base.write_bytes(b"REDIS9999 nonsense")
        with pytest.raises(DeployError, match=r"Valkey ended at once, exit code 1: .*Bad file format"):
            valkey.start()


class TestPostgres:
    @pytest.mark.parametrize("account", ACCOUNTS)
    def test_keeps_its_data_through_a_stop_and_through_a_kill(self, tmp_path, account):
        postgres = new_postgres(tmp_path / "sql", account=account)
        with postgres:
            query(postgres.owner_url, "CREATE TABLE kept (word text)")
            query(postgres.service_url, "INSERT INTO kept VALUES ('stopped')")
        with postgres:
            query(postgres.service_url, "INSERT INTO kept VALUES ('killed')")
            postgres.child.send(signal.SIGKILL)
        with postgres:
            assert query(postgres.service_url, "SELECT word FROM kept") == [("stopped",), ("killed",)]

    @pytest.mark.parametrize("order", [ACCOUNTS, ACCOUNTS[::-1]])
    def test_goes_on_with_a_folder_that_was_run_another_way(self, tmp_path, order):
        for account in order:
            with new_postgres(tmp_path / "sql", account=account) as postgres:
                query(postgres.owner_url, "CREATE TABLE IF NOT EXISTS kept (word text)")
                query(postgres.owner_url, f"INSERT INTO kept VALUES ('{account}')")
        with new_postgres(tmp_path / "sql") as postgres:
            assert query(postgres.owner_url, "SELECT word FROM kept") == [(each.value,) for each in order]

    def test_every_role_needs_its_own_password(self, servers):
        postgres = servers.postgres
        for role in (ADMIN, OWNER, SERVICE):
            host = postgres.socket_folder
            for address in (f"postgresql://{role}@/postgres?host={host}", f"postgresql://{role}:no@/dibs?host={host}"):
                with pytest.raises(psycopg.OperationalError, match="password"):
                    psycopg.connect(address, passfile="/nowhere")
        assert listening(postgres.child.pid) == []
        assert query(postgres.admin_url, "SELECT DISTINCT auth_method FROM pg_hba_file_rules") == [("scram-sha-256",)]
        hashes = query(postgres.admin_url, "SELECT rolpassword FROM pg_authid WHERE rolpassword IS NOT NULL")
        assert [each for (each,) in hashes if not each.startswith("SCRAM-SHA-256$")] == []

    def test_the_owner_changes_the_schema_and_the_service_only_rows(self, servers):
        postgres = servers.postgres
        query(postgres.owner_url, "CREATE TABLE rights (id bigint GENERATED ALWAYS AS IDENTITY, word text)")
        query(postgres.owner_url, "CREATE SEQUENCE rights_seq")
        query(postgres.service_url, "INSERT INTO rights (word) VALUES ('a')")
        query(postgres.service_url, "UPDATE rights SET word = 'b'")
        assert query(postgres.service_url, "SELECT word, nextval('rights_seq') FROM rights") == [("b", 1)]
        for forbidden in ("CREATE TABLE mine (id int)", "DROP TABLE rights", "TRUNCATE rights", "CREATE ROLE other"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                query(postgres.service_url, forbidden)
        query(postgres.owner_url, "REVOKE UPDATE, DELETE ON rights FROM dibs_service")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            query(postgres.service_url, "DELETE FROM rights")
        superusers = query(postgres.admin_url, "SELECT rolname FROM pg_roles WHERE rolsuper")
        assert superusers == [(ADMIN,)]

    def test_sqlalchemy_takes_the_address(self, servers):
        url = servers.postgres.service_url.replace("postgresql://", "postgresql+psycopg://")
        engine = create_engine(url)
        with engine.connect() as connection:
            row = connection.execute(text("SELECT current_user, current_database()")).one()
        engine.dispose()
        assert row == (SERVICE, "dibs")

    def test_is_safe_by_default_and_quick_for_tests(self, tmp_path, servers):
        names = "'fsync', 'full_page_writes', 'synchronous_commit', 'data_checksums', 'max_connections'"
        settings = f"SELECT name, setting FROM pg_settings WHERE name IN ({names}) ORDER BY name"
        with new_postgres(tmp_path / "sql", durable=True) as postgres:
            safe = dict(query(postgres.service_url, settings))
        assert safe == {
            "data_checksums": "on",
            "fsync": "on",
            "full_page_writes": "on",
            "max_connections": "200",
            "synchronous_commit": "on",
        }
        quick = dict(query(servers.postgres.service_url, settings))
        assert quick == safe | {"fsync": "off", "full_page_writes": "off"}

    def test_a_half_made_cluster_is_made_anew(self, tmp_path):
        half = tmp_path / "data.new"
        half.mkdir(parents=True)
        (half / "PG_VERSION").write_text("18\n")
        with new_postgres(tmp_path) as postgres:
            assert query(postgres.service_url, "SELECT 1") == [(1,)]
        assert not half.exists()
        assert not (tmp_path / "admin-password").exists()

    def test_roles_and_database_are_completed_when_the_first_start_was_cut_short(self, tmp_path):
        with new_postgres(tmp_path) as postgres:
            drop_database(postgres, "dibs")
            query(postgres.admin_url, "DROP ROLE dibs_service")
        with postgres:
            query(postgres.owner_url, "CREATE TABLE late (id int)")
            assert query(postgres.service_url, "SELECT count(*) FROM late") == [(0,)]

    def test_a_stale_pid_file_that_names_a_living_stranger_is_no_obstacle(self, tmp_path):
        postgres = new_postgres(tmp_path)
        with postgres:
            own = str(postgres.child.pid)
            pid_file = (postgres.data / "postmaster.pid").read_text()
            socket_lock = (tmp_path / ".s.PGSQL.5432.lock").read_text()
        stranger = subprocess.Popen(["sleep", "600"])
        try:
            (postgres.data / "postmaster.pid").write_text(pid_file.replace(own, str(stranger.pid), 1))
            (tmp_path / ".s.PGSQL.5432.lock").write_text(socket_lock.replace(own, str(stranger.pid), 1))
            (tmp_path / ".s.PGSQL.5432").touch()
            with postgres:
                assert query(postgres.service_url, "SELECT 1") == [(1,)]
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    def test_lost_secrets_are_told(self, tmp_path):
        with new_postgres(tmp_path):
            pass
        others = PostgresPasswords(admin="x", owner="y", service="z")
        with pytest.raises(DeployError, match=r"has other passwords than the state folder's secrets"):
            new_postgres(tmp_path, passwords=others).start()

    def test_another_major_version_is_told(self, tmp_path):
        (tmp_path / "data").mkdir()
        with pytest.raises(DeployError, match="is not a PostgreSQL cluster"):
            new_postgres(tmp_path).start()
        (tmp_path / "data" / "PG_VERSION").write_text("17\n")
        with pytest.raises(DeployError, match="was made by PostgreSQL 17, here is 18"):
            new_postgres(tmp_path).start()

    def test_clones_hold_what_the_template_was_prepared_with(self, servers):
        leak: list[psycopg.Connection] = []

        def prepare(url: str) -> None:
            query(url, "CREATE TABLE prepared (word text)")
            leak.append(psycopg.connect(url))

        template_database(servers.postgres, "template_a", prepare)
        for name in ("clone_a", "clone_b"):
            clone_database(servers.postgres, name, template="template_a")
            query(servers.postgres.url(role=SERVICE, database=name), f"INSERT INTO prepared VALUES ('{name}')")
        words = query(servers.postgres.url(role=SERVICE, database="clone_b"), "SELECT word FROM prepared")
        assert words == [("clone_b",)]
        with psycopg.connect(servers.postgres.url(role=SERVICE, database="clone_a")):
            drop_database(servers.postgres, "clone_a")
        databases = query(servers.postgres.admin_url, "SELECT datname FROM pg_database WHERE datname LIKE 'clone%'")
        assert databases == [("clone_b",)]
        leak[0].close()


RUN_BOTH = """
    import signal, sys
    from pathlib import Path
    from tests.servers import shared_servers
    with shared_servers(Path(sys.argv[1])) as pair:
        print(pair.valkey.child.pid, pair.postgres.child.pid, flush=True)
        signal.pause()
"""


class TestLifeAndDeath:
    def test_nothing_outlives_a_killed_parent_and_the_next_start_goes_on(self, tmp_path):
        command = [sys.executable, "-c", textwrap.dedent(RUN_BOTH), str(tmp_path)]
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            pids = [int(word) for word in parent.stdout.readline().split()]
            assert len(pids) == 2
            family = [each.pid for pid in pids for each in (psutil.Process(pid), *psutil.Process(pid).children())]
            assert len(family) > 4
        finally:
            parent.kill()
            parent.communicate()
        wait_for("both servers and their children to end", lambda: not any(is_alive(pid) for pid in family))
        with EmbeddedValkey(tmp_path / "valkey", password="word") as valkey, valkey_client(valkey.url) as client:
            assert client.ping()

    def test_a_start_waits_for_one_that_is_still_ending(self, tmp_path):
        first = new_postgres(tmp_path)
        first.start()
        with psycopg.connect(first.service_url) as held:
            # A smart shutdown waits for the session; the second start waits for the shutdown.
            first.child.send(signal.SIGTERM)
            ender = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -INT {first.child.pid}"])
            with new_postgres(tmp_path) as second:
                assert query(second.service_url, "SELECT 1") == [(1,)]
                assert first.child.poll() is not None
            held.close()
        assert ender.wait() == 0

    def test_a_second_server_on_a_folder_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr("deploy.servers.LOCK_SECONDS", 0.1)
        words = r"another Valkey still runs in .*valkey: end it first"
        with EmbeddedValkey(tmp_path / "valkey", password="word"), pytest.raises(DeployError, match=words):
            EmbeddedValkey(tmp_path / "valkey", password="word").start()
        with new_postgres(tmp_path / "sql"), pytest.raises(DeployError, match="another PostgreSQL still runs"):
            new_postgres(tmp_path / "sql").start()

    @pytest.mark.parametrize("name", ["n" * 120, "odd, 'path' with: ?*[ü] %41"])
    def test_a_path_that_no_socket_takes_gets_a_private_folder_elsewhere(self, tmp_path, name):
        valkey = EmbeddedValkey(tmp_path / name / "valkey", password="word")
        postgres = new_postgres(tmp_path / name / "sql")
        for _ in range(2):
            with valkey, postgres, valkey_client(valkey.url) as client:
                assert client.ping()
                assert query(postgres.service_url, "SELECT 1") == [(1,)]
                places = [valkey.socket_folder, postgres.socket_folder]
                assert [place.stat().st_mode & 0o777 for place in places] == [0o700, 0o700]
                assert [place for place in places if tmp_path in place.parents] == []
            assert [place for place in places if place.exists()] == []

    def test_a_folder_elsewhere_is_used_again_after_a_kill_and_not_if_a_stranger_made_it(self, tmp_path):
        valkey = EmbeddedValkey(tmp_path / ("n" * 120), password="word")
        valkey.start()
        place = valkey.socket_folder
        valkey.child.send(signal.SIGKILL)
        wait_for("Valkey to end", lambda: valkey.child.poll() is not None)
        assert valkey.socket_folder == place
        place.chmod(0o777)
        with valkey:
            assert valkey.socket_folder != place
        (place / "valkey.sock").unlink()
        place.rmdir()

    def test_a_supervisor_brings_killed_servers_back_at_the_same_address(self, tmp_path):
        reports: list[str] = []
        valkey = EmbeddedValkey(tmp_path / "valkey", password="word")
        postgres = new_postgres(tmp_path / "sql")
        with Supervisor(report=reports.append) as supervisor:
            for server in (valkey, postgres):
                supervisor.start(server, stage=0)
                server.wait_ready()
            with psycopg.connect(postgres.service_url) as session:
                # An open session keeps the old cluster's memory in use until its process has noticed.
                session.execute("SELECT 1")
                valkey.child.send(signal.SIGKILL)
                postgres.child.send(signal.SIGKILL)
                wait_for("both deaths", lambda: supervisor.step(0.05) and len(reports) >= 2)

                def back() -> bool:
                    supervisor.step(0.05)
                    try:
                        with valkey_client(valkey.url) as client:
                            return client.ping() and query(postgres.service_url, "SELECT 1") == [(1,)]
                    except (redis.ConnectionError, psycopg.OperationalError):
                        return False

                wait_for("both to answer again", back)
                session.close()
            pids = [valkey.child.pid, postgres.child.pid]
        assert [report.split(":")[0] for report in sorted(reports)] == [
            "postgres ended, SIGKILL; starting it again in 0.2 s",
            "valkey ended, SIGKILL; starting it again in 0.2 s",
        ]
        assert not any(is_alive(pid) for pid in pids)
