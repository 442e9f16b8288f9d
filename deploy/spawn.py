"""Becomes another program that ends with its parent and, if asked, runs as an ordinary account.

Run as a file by :mod:`deploy.program`: ``python -I -S spawn.py SPEC PROGRAM ARGUMENT...`` where SPEC is the
JSON of a ``Spec``. A process of its own instead of a ``preexec_fn``, because Python code between fork and
exec may deadlock once the parent has threads.

Two ways to end with the parent:

- Linux: the kernel's parent-death signal. It follows the thread that forked, so spawn from one that stays.
- elsewhere (or when a ``guard`` is given): a forked watcher reads a pipe whose only writer is the parent. End
  of file without a byte means that the parent died; a byte means that this program ended first.

Two ways to an ordinary account (PostgreSQL refuses uid 0, its initdb also a uid that no password file lists):

- a user namespace in which such an account stands for the present user, who stays the owner of all files;
- where namespaces are refused, as in many containers: the account itself, keeping the one capability
  (DAC_OVERRIDE) that lets it reach root's folders, so that no folder above the state is opened to others. For root.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pwd
import signal
import sys
from typing import NoReturn, TypedDict

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CLONE_NEWUSER = 0x10000000
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522
_EXIT_REFUSED = 126
_EXIT_NOT_STARTED = 127
_ADVICE = "run as an ordinary user that the password file lists, or set DIBS_DATABASE_URL"


class Spec(TypedDict):
    """What the program has to become.

    ``parent`` is the pid whose end it must share, ``death_signal`` how, ``guard`` the pipe's reading end or
    null. ``account`` is ``keep``, ``namespace``, ``capability`` or ``any`` (the first that is granted);
    ``own`` lists trees that must belong to the account as the file system sees it.
    """

    parent: int
    death_signal: int
    guard: int | None
    account: str
    own: list[str]


class RefusedError(Exception):
    """The machine does not grant what the specification asks for."""


def main() -> NoReturn:
    """Do what the specification says, then execute the program."""
    spec: Spec = json.loads(sys.argv[1])
    program = sys.argv[2:]
    try:
        if spec["account"] != "keep":
            become_ordinary(spec["account"], spec["own"])
        # Last, because changing credentials clears the parent-death signal.
        share_end(spec)
        os.execv(program[0], program)  # noqa: S606 - becoming another program is the purpose
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"cannot start {program[0].rpartition('/')[2]}: {error}\n")
        os._exit(_EXIT_REFUSED if isinstance(error, RefusedError) else _EXIT_NOT_STARTED)


def share_end(spec: Spec) -> None:
    """Arrange that this process gets ``death_signal`` when its parent dies, however that dies."""
    if spec["guard"] is not None:
        _watch(spec["guard"], spec["death_signal"])
        return
    _call("prctl", _PR_SET_PDEATHSIG, spec["death_signal"], 0, 0, 0)
    # A parent that died before the line above sends no signal any more.
    if os.getppid() != spec["parent"]:
        raise RefusedError("its parent is gone")


def _watch(guard: int, death_signal: int) -> None:
    """Leave a watcher behind, reparented to init so that the program meets no child that it did not start."""
    program = os.getpid()
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        os.close(guard)
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    os.closerange(0, guard)
    os.closerange(guard + 1, 4096)
    if not os.read(guard, 1):
        try:
            os.kill(program, death_signal)
        except ProcessLookupError:
            os._exit(0)
    os._exit(0)


def become_ordinary(account: str, own: list[str]) -> None:
    """Become an ordinary account in the way that ``account`` names.

    Raises:
        RefusedError: the machine grants none of the ways asked for.
    """
    user = ordinary_account()
    if account != "capability" and _grants_namespace(user):
        # Before, not after: inside, a tree of another owner could not be chowned.
        _give(own, os.geteuid(), os.getegid())
        _enter_namespace(user)
        return
    if account == "namespace":
        raise RefusedError(f"no user namespace is granted; {_ADVICE}")
    try:
        _give(own, user.pw_uid, user.pw_gid)
        _switch_account(user)
    except OSError as error:
        raise RefusedError(f"no user namespace and no other account is granted ({error}); {_ADVICE}") from None


def ordinary_account() -> pwd.struct_passwd:
    """Return who to run as: ``nobody``, or the last account but root. initdb wants it to be listed."""
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    if not others:
        raise RefusedError(f"no account but root is listed; {_ADVICE}")
    return max(others, key=lambda entry: (entry.pw_name == "nobody", entry.pw_uid))


def _grants_namespace(user: pwd.struct_passwd) -> bool:
    """Try it in a child: a refusal half way, at the map, would leave this process with no account at all."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        _enter_namespace(user)
    except OSError:
        os._exit(1)
    os._exit(0)


def _enter_namespace(user: pwd.struct_passwd) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user.pw_uid} {uid} 1"),
        ("gid_map", f"{user.pw_gid} {gid} 1"),
    ):
        target = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(target, text.encode())
        finally:
            os.close(target)


def _switch_account(user: pwd.struct_passwd) -> None:
    _call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_DAC_OVERRIDE
    # Two triples of effective, permitted and inheritable: the low and the high 32 capabilities.
    capabilities = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    _call("capset", header, capabilities)
    _call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


def _give(trees: list[str], uid: int, gid: int) -> None:
    """Chown the trees whose top has another owner: after a change of machine or of way, so hardly ever."""
    for tree in trees:
        if os.lstat(tree).st_uid == uid:
            continue
        for folder, _, files in os.walk(tree, topdown=False):
            for name in files:
                os.chown(os.path.join(folder, name), uid, gid, follow_symlinks=False)  # noqa: PTH118 - bare start-up
            os.chown(folder, uid, gid, follow_symlinks=False)


def _call(name: str, *arguments: object) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"{name}: not on this system")
    # A bare int would be passed as 32 bits, and the kernel reads 64.
    if function(*(ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    # The signals that Python itself catches or ignores must be the program's own to decide on.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    main()
