"""A file system of Python and its libraries, read-only, and nothing else, in namespaces of its own.

After `enter` this process sees no other file, has no network, and holds no privilege outside. `own_tree` then
gives every program processes, a scratch folder and counters of its own.
"""

import contextlib
import os
import sys

from equipoise.tasks.sandbox.inside import kernel as k

__all__ = ["NOBODY", "SCRATCH", "enter", "leave_root", "own_scratch", "own_tree", "readable_paths"]

SCRATCH = "/scratch"
NOBODY = 65534
_LIBRARIES = ("/usr", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store")
_FILES = ("/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_OLD = "/old"
_MOUNTED_ON = "/tmp"  # noqa: S108 any folder that is always there
#: of statvfs and mount: flags that a mount in a user namespace may not lose
_KEPT_FLAGS = ((2, 2), (4, 4), (8, 8), (1024, 1024), (2048, 2048), (4096, 1 << 21))


def readable_paths() -> dict[str, str]:
    """The folders and devices that a Python program needs, and where they really are."""
    paths = [*_LIBRARIES, *_FILES]
    for prefix in (sys.base_prefix, sys.base_exec_prefix):
        if not any(prefix == p or prefix.startswith(p + "/") for p in paths):
            paths.append(prefix)
    return {p: os.path.realpath(p) for p in paths if os.path.exists(p)}


def enter() -> int:
    """Leave for new namespaces with nothing but Python in them; as root, leave root too.

    Returns
    -------
    int
        A descriptor of ``/proc``, which is not there any more: for `own_tree`.

    Raises
    ------
    OSError
        A step is not allowed here; the process is of no use then.
    """
    proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
    built = False
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            k.unshare(k.CLONE_NEWNS)
            built = True
        if built:  # with root's own rights, for Python may lie where only root can go
            _build()
        leave_root()
    _new_user(proc, k.CLONE_NEWNS | k.CLONE_NEWNET | k.CLONE_NEWIPC | k.CLONE_NEWUTS)
    if not built:
        _build()
    return proc


def leave_root() -> None:
    """Become nobody."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def own_tree(proc: int) -> None:
    """The next child is the first process of a tree of its own: when it ends, all of them are killed."""
    _new_user(proc, k.CLONE_NEWNS | k.CLONE_NEWPID | k.CLONE_NEWIPC)


def own_scratch(*, size: int, files: int) -> None:
    """An empty folder in memory, for this process's namespaces alone, and go there."""
    limits = f"size={size},nr_inodes={files},mode=700"
    k.mount("scratch", SCRATCH, "tmpfs", k.MS_NOSUID | k.MS_NODEV | k.MS_NOEXEC, limits)
    os.chdir(SCRATCH)


def _new_user(proc: int, others: int) -> None:
    uid, gid = os.geteuid(), os.getegid()
    k.prctl(k.PR_SET_DUMPABLE, 1)  # else the maps below belong to root
    k.unshare(k.CLONE_NEWUSER | others)
    maps = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"))
    for name, text in maps:
        at = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(at, text.encode())
        finally:
            os.close(at)
    k.prctl(k.PR_SET_DUMPABLE, 0)


def _build() -> None:
    paths = readable_paths()
    k.mount("", "/", None, k.MS_SLAVE | k.MS_REC)  # nothing of this shows outside
    k.mount("root", _MOUNTED_ON, "tmpfs", k.MS_NOSUID | k.MS_NODEV, "size=1m,mode=755")
    os.mkdir(_MOUNTED_ON + _OLD)
    k.pivot_root(_MOUNTED_ON, _MOUNTED_ON + _OLD)
    os.chdir("/")
    for path, really in paths.items():
        _show(path, _OLD + really)
    os.mkdir(SCRATCH)
    k.umount(_OLD)
    os.rmdir(_OLD)
    k.mount("", "/", None, k.MS_REMOUNT | k.MS_BIND | k.MS_RDONLY | k.MS_NOSUID | k.MS_NODEV)


def _show(path: str, source: str) -> None:
    """Bind one path of the old root, read-only."""
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    k.mount(source, path, None, k.MS_BIND | k.MS_REC)
    present = os.statvfs(path).f_flag
    kept = sum(flag for seen, flag in _KEPT_FLAGS if present & seen)
    k.mount("", path, None, k.MS_REMOUNT | k.MS_BIND | k.MS_RDONLY | kept)
