"""Linux system calls that Python has no function for: namespaces, mounts, capabilities, Landlock, seccomp.

Sources: unshare(2), mount(2), pivot_root(2), capset(2), landlock(7), seccomp(2).
"""

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

__all__ = [
    "CLONE_NEWCGROUP",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "drop_capabilities",
    "install_filter",
    "landlock_abi",
    "mount",
    "no_new_privileges",
    "pivot_root",
    "prctl",
    "restrict_files",
    "umount",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1 << 5, 1 << 12, 1 << 14, 1 << 19
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SECCOMP_MODE_FILTER = 2

#: the same numbers on every architecture but Alpha
_LANDLOCK_CREATE, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT = 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITY_VERSION_3 = 0x20080522

# Landlock's file rights by bit; how many of them a kernel knows depends on its ABI.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_RIGHTS_BY_ABI = ((1, 13), (2, 14), (3, 15), (5, 16))
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _call(what: str, function: str, *arguments: object) -> int:
    if _libc is None:
        raise OSError(f"{what}: not Linux")
    found = int(getattr(_libc, function)(*arguments))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return found


def _long(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


def prctl(option: int, value: int, *more: int) -> None:
    """prctl(2) with integers."""
    _call(f"prctl {option}", "prctl", option, *(ctypes.c_ulong(v) for v in (value, *more, 0, 0, 0)[:4]))


def unshare(flags: int) -> None:
    """Leave the namespaces of ``flags`` for new ones."""
    _call("unshare", "unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    texts = [None if t is None else t.encode() for t in (source, target, kind)]
    given = None if data is None else data.encode()
    _call(f"mount {target}", "mount", *texts, ctypes.c_ulong(flags), given)


def umount(target: str) -> None:
    """Take a mount away, now or when its last user is gone."""
    _call(f"umount {target}", "umount2", target.encode(), MNT_DETACH)


def pivot_root(new: str, old: str) -> None:
    """Make the mount ``new`` the root, and move the present one to ``old`` below it."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: not known on {os.uname().machine}")
    _call("pivot_root", "syscall", _long(number), new.encode(), old.encode())


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the last one, or not allowed: then there are none to drop
            break
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", "capset", header, bytes(24))


def no_new_privileges() -> None:
    """Nothing that is run from here on gains privileges; Landlock and seccomp need it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def landlock_abi() -> int:
    """Landlock's version here; 0: none."""
    if _libc is None:
        return 0
    return max(0, int(_libc.syscall(_long(_LANDLOCK_CREATE), None, _long(0), _long(1))))


def restrict_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """Landlock: this process and its children open files below these paths alone.

    With a newer kernel it also forbids TCP, abstract sockets and signals to processes outside.

    Raises
    ------
    OSError
        There is no Landlock here.
    """
    abi = landlock_abi()
    if abi < 1:
        raise OSError("Landlock is not there")
    every = (1 << max(n for at, n in _RIGHTS_BY_ABI if at <= abi)) - 1
    fields = [every]
    if abi >= 4:
        fields.append(0b11)  # bind and connect of TCP
    if abi >= 6:
        fields.append(0b11)  # abstract sockets, signals
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _call(
        "landlock", "syscall", _long(_LANDLOCK_CREATE), attributes, _long(len(attributes)), _long(0)
    )
    try:
        for paths, rights in ((readable, _READ), (writable, every)):
            for path in paths:
                _allow(ruleset, path, rights)
        _call("landlock", "syscall", _long(_LANDLOCK_RESTRICT), _long(ruleset), _long(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_ONLY
        rule = struct.pack("=Qi", rights, at)
        _call(
            f"landlock {path}", "syscall", _long(_LANDLOCK_ADD_RULE), _long(ruleset), _long(1), rule, _long(0)
        )
    finally:
        os.close(at)


def install_filter(program: bytes) -> None:
    """Install a seccomp filter: 8 bytes an instruction, as `seccomp.build` makes them."""

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))

    code = ctypes.create_string_buffer(program, len(program))
    given = Program(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    _call(
        "seccomp",
        "prctl",
        PR_SET_SECCOMP,
        ctypes.c_ulong(SECCOMP_MODE_FILTER),
        ctypes.byref(given),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
