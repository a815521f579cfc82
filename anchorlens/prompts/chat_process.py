"""Render chat templates in a process of their own, with bounded time and memory.

A chat template is a program of the checkpoint's author. Jinja's sandbox keeps it from files and
modules, but neither from loops nor from long texts, and no process can stop such a call in itself.

transformers renders the template, at a fixed time. It passes a template plain values and no
functions, so a macro shadows the function that reads the clock, in this one template, and reads the
texts from a dictionary. The line end belongs to the macro's last tag (trim_blocks), so the template
begins at the start of a line as before.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from threading import Lock
from typing import Any

import psutil

from anchorlens.display import one_line

# Most seconds and bytes of one text, and its most characters; those of a real template take
# milliseconds.
SECONDS = 5
_BYTES = 1 << 29
_MOST_CHARACTERS = 1 << 22
# Name of the function by which transformers lets a template read the clock.
_CLOCK_FUNCTION = "strftime_now"
# Start of the error by which the macro asks for a format that it has no text for.
_NO_TEXT = "anchorlens: no text for the format "
_CLOCK_MACRO = (
    f"{{% macro {_CLOCK_FUNCTION}(format) %}}{{{{ anchorlens_clock[format] if format in"
    f" anchorlens_clock else raise_exception('{_NO_TEXT}' ~ format) }}}}{{% endmacro %}}\n"
)
# Isolated from the current directory, which may hold a module of any name.
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from anchorlens.prompts import chat_process;"
    " chat_process.answer_requests({seconds})"
)


class ChatProcess:
    """Process that renders chat templates; it is started when it is needed, and ended when a
    template exceeds a limit.

    Args:
        seconds: Most seconds of computing of one text.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def render(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the text and the texts of the time of a request (:func:`_render`), or ``error``:
        the reason why there is none.

        Raises:
            OSError: If no process can be started.
        """
        with self._lock:
            try:
                reply = _exchange(self._start(), request)
            except BaseException:  # Ctrl-C: the next request must not read the reply to this one
                self.stop()
                raise
            if reply is None:
                self.stop()
                reply = {"error": f"it does not end within {self.seconds} seconds of computing"}
            return reply

    def _start(self) -> "subprocess.Popen[str]":
        """Return the process; a fork of this process has its own."""
        process = self._process
        if process is not None and self._owner == os.getpid() and process.poll() is None:
            return process
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START.format(seconds=self.seconds), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf8",
        )
        # Its imports are not part of the time of the first template.
        if _exchange(self._process, None) is None:
            raise OSError("no process can be started for it")
        return self._process

    def stop(self) -> None:
        """End the process, if it runs."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


CHAT_PROCESS = ChatProcess()
"""Process that renders the templates of this process."""
atexit.register(CHAT_PROCESS.stop)


def _exchange(process: "subprocess.Popen[str]", request: object) -> dict[str, Any] | None:
    """Send a request to a process and return its reply; None if the process ends."""
    assert process.stdin is not None and process.stdout is not None  # pipes
    try:
        process.stdin.write(f"{json.dumps(request)}\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    line = process.stdout.readline()
    return json.loads(line) if line.endswith("\n") else None


def answer_requests(seconds: float) -> None:
    """Read requests from standard input, one JSON value per line, and write the replies, each
    computed in so many seconds at most.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    replies = sys.stdout
    sys.stdout = sys.stderr  # no text of a library is a reply
    from transformers.utils import chat_template_utils  # noqa: F401 - before the limit

    _limit_memory()
    for line in sys.stdin:
        _limit_time(seconds)
        request = json.loads(line)
        reply = "{}" if request is None else _reply(request)
        _limit_time(0)
        replies.write(f"{reply}\n")
        replies.flush()


def _limit_memory() -> None:
    """Bound the memory of this process, where the operating system can."""
    try:
        import resource

        most = psutil.Process().memory_info().vms + _BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):  # Windows, macOS
        pass


def _limit_time(seconds: float) -> None:
    """Let the operating system end this process after so many seconds of computing, whatever it
    does; 0 for no limit. Windows cannot.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(request: dict[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        reply = json.dumps(_render(**request))
        if len(reply) <= _MOST_CHARACTERS:
            return reply
        problem = f"its text has more than {_MOST_CHARACTERS:,} characters"
    except MemoryError:
        problem = f"it needs more than {_BYTES / 1e9:.1f} GB of memory"
    except TemplateError as error:
        problem = one_line(error)
    except Exception as error:  # noqa: BLE001 - a template can raise any of them
        problem = f"{type(error).__name__}: {one_line(error)}"
    return json.dumps({"error": problem})


def _render(
    *,
    template: str,
    messages: list[dict[str, Any]],
    values: Mapping[str, Any],
    time: str,
    texts: dict[str, str],
) -> dict[str, Any]:
    """Render a template as transformers does at a time.

    Args:
        template: The template.
        messages: Messages with ``role`` and ``content``.
        values: Further values that the template reads.
        time: Local time in ISO format.
        texts: Format -> text of the time, for formats that are known to be read; extended.

    Returns:
        The ``text``, and ``texts``.
    """
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    if _CLOCK_FUNCTION in template:
        template = _CLOCK_MACRO + template
        values = {**values, "anchorlens_clock": texts}
    while True:
        try:
            (text,), _ = render_jinja_template([messages], chat_template=template, **values)
        except TemplateError as why:
            wanted, has_format, time_format = str(why).partition(_NO_TEXT)
            if wanted or not has_format or time_format in texts:
                raise
            texts[time_format] = datetime.fromisoformat(time).strftime(time_format)
        else:
            break
    text.encode("utf8")  # raises for half of a character
    return {"text": text, "texts": texts}
