"""The seccomp filter: an allow list of system calls, as a classic BPF program.

No sockets, processes, signals to others, tracing, mounts, keys or new kernel interfaces: what is not listed
fails with EPERM. Numbers from the kernel's unistd.h; `x86_64` and `aarch64`.
"""

import errno
import os
import struct

__all__ = ["ARCHITECTURES", "SYSCALLS", "build"]

#: machine -> what the kernel calls it in a filter
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None: not there
_Numbers = tuple[int | None, int | None]
_READ: dict[str, _Numbers] = {
    "read": (0, 63),
    "pread64": (17, 67),
    "readv": (19, 65),
    "preadv": (295, 69),
    "preadv2": (327, 286),
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "pwritev2": (328, 287),
    "close": (3, 57),
    "close_range": (436, 436),
    "lseek": (8, 62),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
}
_OWN: dict[str, _Numbers] = {
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "msync": (26, 227),
    "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "pause": (34, None),
    "restart_syscall": (219, 128),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "alarm": (37, None),
    "futex": (202, 98),
    "futex_waitv": (449, 449),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "membarrier": (324, 283),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getgroups": (115, 158),
    "getpgid": (121, 155),
    "getpgrp": (111, None),
    "getsid": (124, 156),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getrlimit": (97, 163),
    "getpriority": (140, 141),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "umask": (95, 166),
    "getrandom": (318, 278),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
# Only where a scratch folder of its own is the one place that can be written to.
_WRITE: dict[str, _Numbers] = {
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "utimensat": (280, 88),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
}
# With conditions on their arguments; clone3's are out of a filter's reach.
_CONDITIONAL: dict[str, _Numbers] = {
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prlimit64": (302, 261),
}
SYSCALLS: dict[str, _Numbers] = {**_READ, **_OWN, **_WRITE, **_CONDITIONAL}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH = 0, 4  # offsets in struct seccomp_data; arguments follow at 16
_X32 = 0x40000000
_CLONE_THREAD = 0x00010000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
#: isatty, window size, and Python's way of setting close-on-exec
_IOCTLS = (0x5401, 0x5413, 0x5450, 0x5451)
#: descriptors, their flags and locks; not F_SETOWN, which sends signals to anyone
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)


def _argument(number: int) -> int:
    return 16 + 8 * number  # the low half, on a little-endian machine


def build(machine: str, *, pid: int, writable: bool) -> bytes:
    """The filter for one process and its threads.

    Parameters
    ----------
    machine : str
        As ``os.uname().machine``.
    pid : int
        The process's own, in its namespace: the only one that it may signal.
    writable : bool
        Whether files may be opened for writing (where another layer says which).

    Raises
    ------
    OSError
        The architecture is not known.
    """
    if machine not in ARCHITECTURES:
        raise OSError(f"seccomp: no filter for {machine}, only for {', '.join(ARCHITECTURES)}")
    column = list(ARCHITECTURES).index(machine)
    code: list[tuple[int, int, int, int]] = []

    def end(action: int) -> None:
        code.append((_RETURN, 0, 0, action))

    def when(number: int | None, *body: tuple[int, int, int, int]) -> None:
        """Run ``body``, which ends in a return, for one system call."""
        if number is not None:
            code.append((_EQUAL, 0, len(body), number))
            code.extend(body)

    def number(name: str) -> int | None:
        return SYSCALLS[name][column]

    allow, fail = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL | errno.EPERM)
    absent = (_RETURN, 0, 0, _FAIL | errno.ENOSYS)  # so that libc takes the older call
    code.append((_LOAD, 0, 0, _ARCH))
    code.append((_EQUAL, 1, 0, ARCHITECTURES[machine]))
    end(_KILL)
    code.append((_LOAD, 0, 0, _NR))
    if machine == "x86_64":
        code.append((_AT_LEAST, 0, 1, _X32))
        end(_KILL)
    for name in (*_READ, *_OWN, *(_WRITE if writable else ())):
        when(number(name), allow)
    for name, at in (("open", 1), ("openat", 2)):
        checked = () if writable else ((_LOAD, 0, 0, _argument(at)), (_ANY_BIT, 0, 1, _WRITING), fail)
        when(number(name), *checked, allow)
    when(number("openat2"), absent)
    when(number("clone3"), absent)
    when(number("clone"), (_LOAD, 0, 0, _argument(0)), (_ANY_BIT, 0, 1, _CLONE_THREAD), allow, fail)
    for name in ("kill", "tgkill"):
        when(number(name), (_LOAD, 0, 0, _argument(0)), (_EQUAL, 0, 1, pid), allow, fail)
    own = [(_LOAD, 0, 0, _argument(0)), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, pid), allow, fail]
    when(number("prlimit64"), *own)
    for name, allowed in (("ioctl", _IOCTLS), ("fcntl", _FCNTLS)):
        tests = [(_EQUAL, len(allowed) - at, 0, value) for at, value in enumerate(allowed)]
        when(number(name), (_LOAD, 0, 0, _argument(1)), *tests, fail, allow)
    end(_FAIL | errno.EPERM)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
