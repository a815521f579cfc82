"""Run a function in a child process, and kill it before one of the system calls with which it
changes files (Linux).
"""

import ctypes
import os
import platform
import signal
import warnings
from collections.abc import Callable

_TRACE_ME, _CONTINUE_TO_CALL, _SET_OPTIONS, _GET_CALL = 0, 24, 0x4200, 0x420E
_MARK_CALLS, _KILL_WITH_PARENT = 1, 0x100000
_MARK = 0x80
# Numbers of write, pwrite64, writev, flock, fsync, fdatasync, ftruncate, link*, mkdir*, rename*,
# rmdir, unlink*.
_CHANGES = {
    "x86_64": {1, 18, 20, 73, 74, 75, 77, 82, 83, 84, 86, 87, 258, 263, 264, 265, 316},
    "aarch64": {64, 68, 66, 32, 82, 83, 46, 37, 34, 38, 276, 35},
}
_OPENAT = {"x86_64": 257, "aarch64": 56}


class _Call(ctypes.Structure):
    """The kernel's ``struct ptrace_syscall_info`` at the entry of a call; the arguments follow the
    number.
    """

    _fields_ = (
        ("operation", ctypes.c_uint8),
        ("padding", ctypes.c_uint8 * 3),
        ("architecture", ctypes.c_uint32),
        ("pointers", ctypes.c_uint64 * 2),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


def run_and_kill(work: Callable[[], object], kill_at: int | None = None) -> tuple[int, int]:
    """Run a function in a child process.

    Args:
        work: Function of the child.
        kill_at: Number of the system call before which the child is killed; counted from 0. If
            None, it is not killed.

    Returns:
        Number of counted system calls of the main thread, and the exit code: negative if a signal
        ended the child.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)

    def trace(request: int, address: object, data: object) -> None:
        if libc.ptrace(request, pid, address, data) == -1:
            raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")
            libc.ptrace(_TRACE_ME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    trace(_SET_OPTIONS, None, _MARK_CALLS | _KILL_WITH_PARENT)
    count, passed_on = 0, 0
    while True:
        trace(_CONTINUE_TO_CALL, None, passed_on)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return count, os.waitstatus_to_exitcode(status)
        stopped_by = os.WSTOPSIG(status)
        passed_on = 0
        if stopped_by != signal.SIGTRAP | _MARK:
            passed_on = stopped_by
            continue
        call = _Call()
        trace(_GET_CALL, ctypes.sizeof(call), ctypes.addressof(call))
        if call.operation == 1 and _changes_files(call):
            if count == kill_at:
                os.kill(pid, signal.SIGKILL)
                return count, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            count += 1


def _changes_files(call: _Call) -> bool:
    machine = platform.machine()
    if call.number == _OPENAT[machine]:
        return bool(call.arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
    return call.number in _CHANGES[machine]
