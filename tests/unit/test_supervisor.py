"""The supervisor with real children: tiny Python programs that live, die and refuse to die."""

import errno
import os
import pwd
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from deploy import spawn
from deploy.folders import DeployError
from deploy.program import Account, Child, Command, Launch, Program, StopStep, Tie, describe_end, tail
from deploy.supervisor import Pauses, StopRequested, Supervisor
from tests.waiting import DEADLINE_SECONDS, is_alive, wait_for

QUICK = Pauses(first=0.01, longest=0.08, good_life=5.0)


def script(folder: Path, name: str, code: str, **options) -> Command:
    launch = {
        "argv": (sys.executable, "-I", "-S", "-c", textwrap.dedent(code), str(folder)),
        "log": folder / f"{name}.log",
    }
    steps = options.pop("stop_steps", (StopStep(signal.SIGTERM, 5.0),))
    return Command(name=name, launch=Launch(**launch | options), stop_steps=steps)


SLEEPER = """
    import pathlib, signal, sys
    pathlib.Path(sys.argv[1], "started").touch()
    signal.pause()
"""
STUBBORN = """
    import pathlib, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1], "asked").touch())
    pathlib.Path(sys.argv[1], "started").touch()
    while True:
        signal.pause()
"""
BROKEN = """
    import sys
    print("settings are missing", file=sys.stderr)
    print("giving up", file=sys.stderr)
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("previous", "lived", "pause"),
    [(None, 0.1, 0.2), (0.2, 0.1, 0.4), (0.4, 9.9, 0.8), (25.6, 0, 30.0), (30.0, 1, 30.0), (30.0, 10.0, 0.2)],
)
def test_pauses_double_up_to_a_limit_and_a_good_life_resets_them(previous, lived, pause):
    assert Pauses().after(previous=previous, lived=lived) == pause


def test_the_first_pause_is_at_most_a_second():
    assert Pauses().after(previous=None, lived=0) <= 1


def test_a_killed_program_is_started_again(tmp_path):
    reports: list[str] = []
    program = script(tmp_path, "sleeper", SLEEPER)
    with Supervisor(report=reports.append, pauses=QUICK) as supervisor:
        supervisor.start(program, stage=1)
        wait_for("the first start", (tmp_path / "started").exists)
        first = program.child.pid
        (tmp_path / "started").unlink()
        os.kill(first, signal.SIGKILL)
        wait_for("the second start", lambda: supervisor.step(0.05) and (tmp_path / "started").exists())
        second = program.child.pid
        assert second != first
    assert not is_alive(second)
    assert reports == ["sleeper ended, SIGKILL; starting it again in 0.01 s"]


def test_one_that_keeps_dying_is_reported_with_its_log_and_tried_ever_less_often(tmp_path):
    reports: list[str] = []
    with Supervisor(report=reports.append, pauses=QUICK) as supervisor:
        supervisor.start(script(tmp_path, "web", BROKEN), stage=1)
        wait_for("five deaths", lambda: supervisor.step(0.05) and len(reports) >= 5)
    pauses = [report.split(" in ")[1].split(" s")[0] for report in reports[:5]]
    assert pauses == ["0.01", "0.02", "0.04", "0.08", "0.08"]
    assert reports[0] == ("web ended, exit code 3; starting it again in 0.01 s: settings are missing | giving up")


def test_a_program_that_cannot_be_started_is_tried_again_and_does_not_end_the_others(tmp_path):
    class Refusing(Program):
        def launch(self) -> Child:
            if (tmp_path / "allowed").exists():
                return sleeper.launch()
            raise DeployError("the folder is taken")

    reports: list[str] = []
    sleeper = script(tmp_path, "sleeper", SLEEPER)
    program = Refusing(name="valkey", log=None)
    with Supervisor(report=reports.append, pauses=QUICK) as supervisor:
        with pytest.raises(DeployError, match="the folder is taken"):
            supervisor.start(program, stage=0)
        (tmp_path / "allowed").touch()
        supervisor.start(program, stage=0)
        (tmp_path / "allowed").unlink()
        os.kill(program.child.pid, signal.SIGKILL)
        wait_for("two refusals", lambda: supervisor.step(0.05) and len(reports) >= 3)
        (tmp_path / "allowed").touch()
        wait_for("a start", lambda: supervisor.step(0.05) and program.child.poll() is None)
    assert reports[1] == "valkey did not start; starting it again in 0.02 s: the folder is taken"


def test_stages_stop_from_the_highest_down_and_one_stage_at_once(tmp_path):
    note = """
        import pathlib, signal, sys, time
        def stop(*_):
            with open(pathlib.Path(sys.argv[1], "order"), "a") as order:
                order.write({name!r} + " asked\\n")
            until = time.monotonic() + {seconds}
            while time.monotonic() < until:
                time.sleep(0.01)
            with open(pathlib.Path(sys.argv[1], "order"), "a") as order:
                order.write({name!r} + " gone\\n")
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        pathlib.Path(sys.argv[1], {name!r}).touch()
        while True:
            signal.pause()
    """
    with Supervisor(report=print, pauses=QUICK) as supervisor:
        for name, seconds, stage in (("sql", 0, 0), ("web", 0.3, 2), ("worker", 0.3, 2), ("edge", 0, 3)):
            supervisor.start(script(tmp_path, name, note.format(name=name, seconds=seconds)), stage=stage)
            wait_for(f"{name} to start", (tmp_path / name).exists)
    order = (tmp_path / "order").read_text().splitlines()
    assert order[:2] == ["edge asked", "edge gone"]
    assert {*order[2:4]} == {"web asked", "worker asked"}
    assert {*order[4:6]} == {"web gone", "worker gone"}
    assert order[6:] == ["sql asked", "sql gone"]


def test_who_ignores_the_stop_is_killed_after_its_deadline_with_its_children(tmp_path):
    code = STUBBORN.replace(
        "while True:",
        """import subprocess
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path(sys.argv[1], "child").write_text(f"{child.pid} ")
    while True:""",
    )
    program = script(tmp_path, "stubborn", code, stop_steps=(StopStep(signal.SIGTERM, 0.2),))
    with Supervisor(report=print, pauses=QUICK) as supervisor:
        supervisor.start(program, stage=1)
        wait_for("its child", lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith(" "))
        leader, child = program.child.pid, int((tmp_path / "child").read_text())
    assert not is_alive(leader)
    wait_for("the grandchild to be gone", lambda: not is_alive(child))


def test_what_a_dead_leader_left_behind_ends_before_it_is_started_again(tmp_path):
    code = """
        import os, pathlib, signal, subprocess, sys
        child = subprocess.Popen(["sleep", "600"])
        pathlib.Path(sys.argv[1], "child").write_text(f"{child.pid} ")
        signal.pause()
    """
    program = script(tmp_path, "leader", code)
    program.spawn()
    wait_for("its child", lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().endswith(" "))
    orphan = int((tmp_path / "child").read_text())
    os.kill(program.child.pid, signal.SIGKILL)
    wait_for("its death to be seen", lambda: program.child.poll() is not None)
    wait_for("the orphan to be gone", lambda: not is_alive(orphan))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_signal_ends_the_care_and_the_programs(tmp_path, number):
    program = script(tmp_path, "sleeper", SLEEPER)
    # The tests themselves may have been started by nohup.
    handler = signal.signal(number, signal.SIG_DFL)
    try:
        with Supervisor(report=print, pauses=QUICK) as supervisor:
            supervisor.start(program, stage=1)
            wait_for("the start", (tmp_path / "started").exists)
            pid = program.child.pid
            # Whether it comes before or within run() is not told apart: both have to end here.
            killer = subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -{int(number)} {os.getpid()}"])
            supervisor.run()
        assert killer.wait() == 0
        assert supervisor.stop_requested
        assert not is_alive(pid)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, handler)


def test_ctrl_c_counts_where_a_shell_had_it_ignored_and_a_hang_up_does_not(tmp_path):
    program = script(tmp_path, "sleeper", SLEEPER)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        with Supervisor(report=print, pauses=QUICK) as supervisor:
            supervisor.start(program, stage=1)
            os.kill(os.getpid(), signal.SIGHUP)
            assert supervisor.step(0.0)
            with pytest.raises(StopRequested):
                os.kill(os.getpid(), signal.SIGINT)
        assert supervisor.stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_stop_signal_during_a_start_interrupts_it_and_leaves_quietly(tmp_path):
    program = script(tmp_path, "sleeper", SLEEPER)
    with Supervisor(report=print, pauses=QUICK) as supervisor:
        supervisor.start(program, stage=1)
        pid = program.child.pid
        with pytest.raises(StopRequested):
            os.kill(os.getpid(), signal.SIGTERM)
        raise StopRequested
    assert supervisor.stop_requested
    assert not is_alive(pid)


def test_a_second_ctrl_c_ends_the_waiting(tmp_path):
    program = script(tmp_path, "stubborn", STUBBORN, stop_steps=(StopStep(signal.SIGTERM, 600.0),))
    began = time.monotonic()
    with Supervisor(report=print, pauses=QUICK) as supervisor:
        supervisor.start(program, stage=1)
        wait_for("the start", (tmp_path / "started").exists)
        wait = f"until [ -e '{tmp_path}/asked' ]; do sleep 0.01; done"
        killer = subprocess.Popen(["sh", "-c", f"{wait}; kill -INT {os.getpid()}"])
    assert killer.wait() == 0
    assert time.monotonic() - began < 60
    assert program.child is None


def test_an_error_in_the_context_stops_the_programs_and_is_passed_on(tmp_path):
    program = script(tmp_path, "sleeper", SLEEPER)
    pids: list[int] = []

    def fail() -> None:
        with Supervisor(report=print, pauses=QUICK) as supervisor:
            supervisor.start(program, stage=1)
            pids.append(program.child.pid)
            raise DeployError("no migration")

    with pytest.raises(DeployError, match="no migration"):
        fail()
    assert not is_alive(pids[0])


@pytest.mark.parametrize("tie", [Tie.PIPE, *([Tie.KERNEL] if sys.platform == "linux" else [])])
def test_a_program_ends_with_a_parent_that_is_killed(tmp_path, tie):
    code = f"""
        import signal, sys
        from pathlib import Path
        from deploy.program import Child, Launch, Tie
        child = Child(Launch(argv=(sys.executable, "-c", "import signal; signal.pause()"), tie=Tie({tie.value!r})))
        print(child.pid, flush=True)
        signal.pause()
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    try:
        pid = int(parent.stdout.readline())
        wait_for("the program to be itself", lambda: "spawn.py" not in str(psutil.Process(pid).cmdline()))
    finally:
        parent.kill()
        parent.communicate()
    wait_for("the program to end with its parent", lambda: not is_alive(pid))


def test_the_watcher_at_the_pipe_goes_when_its_program_has_ended(tmp_path):
    program = script(tmp_path, "sleeper", SLEEPER, tie=Tie.PIPE)
    program.spawn()
    wait_for("the start", (tmp_path / "started").exists)
    # Forked from the helper, it still bears the helper's command line.
    watchers = [process for process in psutil.process_iter(["cmdline"]) if is_watcher(process)]
    assert len(watchers) == 1
    program.stop()
    wait_for("the watcher to be gone", lambda: not is_alive(watchers[0].pid))


def is_watcher(process: psutil.Process) -> bool:
    command = process.info["cmdline"] or []
    return any("spawn.py" in word for word in command) and any(f'"parent": {os.getpid()},' in word for word in command)


def test_a_program_that_does_not_exist_says_so_in_its_log(tmp_path):
    program = Command(name="lost", launch=Launch(argv=("/no/such/program",), log=tmp_path / "log"))
    assert program.spawn().wait(seconds=DEADLINE_SECONDS) == 127
    assert "cannot start program: [Errno 2]" in program.last_words()


def test_where_no_account_is_granted_the_message_says_what_to_do(monkeypatch):
    def refuse(user: object) -> None:
        raise PermissionError(errno.EPERM, "prctl: Operation not permitted")

    monkeypatch.setattr(spawn, "_grants_namespace", lambda _user: False)
    monkeypatch.setattr(spawn, "_switch_account", refuse)
    for account in (Account.ANY, Account.NAMESPACE, Account.CAPABILITY):
        with pytest.raises(spawn.RefusedError, match=r"run as an ordinary user .* or set DIBS_DATABASE_URL"):
            spawn.become_ordinary(account, [])
    monkeypatch.setattr(pwd, "getpwall", lambda: [pwd.struct_passwd(("root", "x", 0, 0, "", "/", "/bin/sh"))])
    with pytest.raises(spawn.RefusedError, match="no account but root is listed; run as an ordinary user"):
        spawn.become_ordinary(Account.ANY, [])


def test_logs_are_private_and_their_end_fits_in_a_line(tmp_path):
    program = script(tmp_path, "broken", BROKEN)
    assert program.spawn().wait(seconds=DEADLINE_SECONDS) == 3
    assert program.log.stat().st_mode & 0o777 == 0o600
    program.log.write_text("one\n\n  two\t2\nthree\nfour " + "x" * 1000 + "\n")
    assert "\n" not in tail(program.log)
    assert len(tail(program.log)) <= 400
    assert tail(tmp_path / "none") == ""


def test_last_words_are_those_since_the_last_start_and_a_large_log_is_set_aside(tmp_path, monkeypatch):
    program = script(tmp_path, "broken", BROKEN)
    program.log.write_text("words of an earlier life\n")
    program.spawn().wait(seconds=DEADLINE_SECONDS)
    assert program.last_words() == "settings are missing | giving up"
    monkeypatch.setattr("deploy.program._LOG_LIMIT_BYTES", 10)
    program.spawn().wait(seconds=DEADLINE_SECONDS)
    assert program.last_words() == "settings are missing | giving up"
    assert "earlier life" in program.log.with_name("broken.log.1").read_text()


@pytest.mark.parametrize(
    ("status", "words"), [(0, "exit code 0"), (-9, "SIGKILL"), (-64, "SIGRTMAX"), (-99, "signal 99")]
)
def test_ends_in_words(status, words):
    assert describe_end(status) == words
