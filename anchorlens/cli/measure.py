"""Measure a study from the command line, or print its cost; finished sweeps are saved even if a
later one fails.
"""

import errno
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorlens.cli.output import (
    describe_os_error,
    echo,
    echo_json,
    note,
    note_error,
    outcome_json,
    show_claims,
    show_result,
    with_options,
)
from anchorlens.cli.shared_options import executor_of_options
from anchorlens.errors import AnchorlensError, EmptySweepError
from anchorlens.progress import name_import

if TYPE_CHECKING:
    from anchorlens.running.run_study import Outcome
    from anchorlens.running.study import Study

# A scheduler sends SIGTERM before SIGKILL; a terminal that is closed or disconnected sends SIGHUP,
# which Windows lacks.
_STOP_SIGNALS = [signal.SIGTERM]
if hasattr(signal, "SIGHUP"):
    _STOP_SIGNALS.append(signal.SIGHUP)


def measure(study: "Study", command: str, given: Mapping[str, Any]) -> None:
    """Measure and save a study; exit with code 1 if a sweep had no row or the command was stopped.

    ``given`` holds the options of the command; they are stored so that ``anchorlens merge`` can
    repeat it.
    """
    with name_import(show=not given["quiet"]):
        from anchorlens.engine.cost import out_of_memory
        from anchorlens.running.run_study import Outcome, run_study

    done = Outcome(0, None)

    def show(result: Any, outcome: "Outcome") -> None:
        if not given["as_json"]:
            if outcome.total > 1:
                ended = len(outcome.results) + len(outcome.empty)
                note(
                    f"{ended} of {outcome.total} sweeps done; figure"
                    f" {_figure(outcome, given['out'])}"
                )
            show_result(result)

    try:
        with _signals_handled_by(_interrupt, *_STOP_SIGNALS):
            run_study(
                study,
                given["out"],
                **{name: given[name] for name in ("overwrite", "resume", "restart", "job")},
                executor=executor_of_options(given),
                outcome=done,
                on_result=show,
                command={"name": command, "given": dict(given), "folder": str(Path.cwd())},
                on_empty=lambda message: note(with_options(message)),
            )
    except EmptySweepError as error:
        if done.total > 1:  # each sweep was reported by on_empty
            error.args = (f"None of {done.total} sweeps had a row to measure.",)
        raise
    except AnchorlensError as error:
        if done.results:
            error.args = (f"{error} {done.kept}",)
        raise
    except KeyboardInterrupt:
        # So that a second Ctrl-C leaves the message whole.
        with _signals_handled_by(signal.SIG_IGN, signal.SIGINT, *_STOP_SIGNALS):
            _stop(f"\nStopped. {done.kept}")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # invalid input, found before the first sweep
            raise
        _stop(f"{describe_os_error(error)} {done.kept}", note_error)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        _stop(
            f"memory ran out, and the smallest unit cannot be split: {error}."
            f" Try --dtype bfloat16. {done.kept}",
            note_error,
        )
    if not given["as_json"]:
        show_claims(done.results)
    if done.job is not None and not done.results:
        _show_job(done, given["out"], as_json=given["as_json"])
    elif given["as_json"]:
        echo_json(outcome_json(done))
    else:
        echo(f"figure  {_figure(done, given['out'])}\nrun     {given['out']}")
    if done.empty:
        _stop(f"{len(done.empty)} of {done.total} sweeps had no row; the others are saved.")


def _stop(message: str, show: Callable[[str], None] = note) -> None:
    show(with_options(message))
    sys.exit(1)


def _show_job(done: "Outcome", out: str, *, as_json: bool) -> None:
    """Print the progress of a job, with the run directory as the user wrote it."""
    from anchorlens.runs.status import status_of

    assert done.out is not None  # jobs require it
    found = status_of(done.out)
    if as_json:
        echo_json(json.dumps({"job": str(done.job), **asdict(found)}))
        return
    kept = sum(one.done for one in found.sweeps)
    shards = sum(one.shards or 0 for one in found.sweeps)
    what = f"Job {done.job} has measured its shards: {kept} of {shards} shards are in {out}.parts."
    then = "Finish" if kept == shards else "When all are there, finish"
    echo(f"{what} {then} with: anchorlens merge {out}")


def _interrupt(*_: object) -> None:
    """Treat a signal as Ctrl-C, so that finished shards are kept."""
    raise KeyboardInterrupt


@contextmanager
def _signals_handled_by(handler: Any, *signals: signal.Signals) -> Iterator[None]:
    """Replace the handlers of signals during a ``with`` statement; an ignored signal, as `nohup`
    leaves SIGHUP, stays ignored.
    """
    used = [one for one in signals if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, handler) for one in used}
    try:
        yield
    finally:
        for one, was in before.items():
            signal.signal(one, was)


def _figure(outcome: "Outcome", out: str) -> str:
    """Return the path of the figure, with the run directory as the user wrote it."""
    assert outcome.out is not None  # the commands require it
    if not (outcome.out / "figure.html").is_file():
        return "not written, see the warning above"
    return str(Path(out) / "figure.html")


def plan_only(study: "Study", *, as_json: bool) -> None:
    """Print the cost of each sweep; nothing is measured or written."""
    from anchorlens.running.run_study import plan_study

    found: list[dict[str, Any]] = []
    empty: list[str] = []
    for one in plan_study(study):
        if one.plan is None:
            empty.append(one.why)
            continue
        own = {
            "model": one.model,
            "dataset": one.dataset,
            "protocol": one.protocol,
            "rows": one.plan.questions,
        }
        found.append({**own, "seconds": round(one.plan.seconds, 2), **one.plan.to_dict()})
        if not as_json:
            which = f" ({one.protocol})" if len(study.specifications) > 1 else ""
            echo(f"{one.model} on {one.dataset}{which}: {one.plan}")
            echo(f"  memory: {one.plan.memory_text}")
    if not found:
        raise EmptySweepError(" ".join(dict.fromkeys(empty)))
    for reason in empty:
        note(with_options(reason))
    if as_json:
        echo_json(json.dumps(found))
    if empty:
        sys.exit(1)
