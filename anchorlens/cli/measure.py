"""Measuring from a shell: a study is looked at, measured and written; what is finished stays whatever happens later."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anchorlens.cli.sharing import executor_of_options
from anchorlens.cli.shown import note, outcome_json, show_result
from anchorlens.cli.wording import translated
from anchorlens.errors import AnchorlensError, EmptySweepError

if TYPE_CHECKING:
    from anchorlens.protocols.study import Outcome, Study


def measure(study: "Study", command: str, given: Mapping[str, Any]) -> None:
    """Measure and write; exit code 1 where a sweep had no row, or where it was stopped.

    Args:
        study: What.
        command: The command that was given.
        given: Its options: ``out``, ``overwrite``, ``resume``, ``force_new``, ``as_json``, those of :mod:`anchorlens.cli.sharing`
            and its own. They are kept, so that ``anchorlens merge`` can give them again.
    """
    from anchorlens.protocols.study import Outcome, run_study

    as_json, how = given["as_json"], {name: given[name] for name in ("overwrite", "resume", "force_new", "shard")}
    executor, begun_by = executor_of_options(given), {"name": command, "given": dict(given), "folder": str(Path.cwd())}

    done = Outcome(0, None)

    def said(result: Any, outcome: "Outcome") -> None:
        if not as_json:
            if outcome.total > 1:
                note(f"{len(outcome.results) + len(outcome.empty)} of {outcome.total} sweeps done; figure {_figure(outcome)}")
            show_result(result)

    try:
        with _stopped_by_term():
            run_study(
                study, given["out"], **how, executor=executor, command=begun_by, outcome=done, on_result=said,
                on_empty=lambda why: note(translated(why)),
            )  # fmt: skip
    except EmptySweepError as why:
        if done.total > 1:  # each has been told when it came
            why.args = (f"None of {done.total} sweeps had a row.",)
        raise
    except AnchorlensError as why:
        if done.results:
            why.args = (f"{why} {done.kept}",)
        raise
    except KeyboardInterrupt:
        note(translated(f"\nStopped. {done.kept}"))
        sys.exit(1)
    except OSError as why:
        note(translated(f"Error: {why.strerror or why}{f': {why.filename}' if why.filename else ''}. {done.kept}"))
        sys.exit(1)
    except (RuntimeError, MemoryError) as why:
        from anchorlens.engine.cost import out_of_memory

        if not out_of_memory(why):
            raise
        said_so = f"Error: memory ran out, and the smallest unit cannot be split: {why}. Try --dtype bfloat16. {done.kept}"
        note(translated(said_so))
        sys.exit(1)
    if done.share is not None and not done.results:
        _show_share(done, as_json=as_json)
    elif as_json:
        click.echo(outcome_json(done))
    else:
        click.echo(f"figure  {_figure(done)}\nrun     {done.out}")
    if done.empty:
        note(f"{len(done.empty)} of {done.total} sweeps had no row; the others are saved.")
        sys.exit(1)


def _show_share(done: "Outcome", *, as_json: bool) -> None:
    """What a job has done, and what is next."""
    from anchorlens.runs.journal import parts_of
    from anchorlens.runs.status import status_of

    assert done.out is not None  # a share needs it
    found = status_of(done.out)
    if as_json:
        click.echo(json.dumps({"job": str(done.share), **asdict(found)}))
        return
    kept, shards = sum(one.done for one in found.sweeps), sum(one.shards or 0 for one in found.sweeps)
    what = f"Job {done.share} has measured its share: {kept} of {shards} shards are in {parts_of(done.out)}."
    click.echo(f"{what} {'Finish' if kept == shards else 'When all are there, finish'} with: anchorlens merge {done.out}")


@contextmanager
def _stopped_by_term() -> Iterator[None]:
    """SIGTERM, which schedulers send before they kill, ends a run as Ctrl-C does: what is measured is kept."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _figure(outcome: "Outcome") -> str:
    assert outcome.out is not None  # the commands ask for it
    file = outcome.out / "figure.html"
    return str(file) if file.is_file() else "none: see the warning above"


def plan_only(study: "Study", *, as_json: bool) -> None:
    """Print what each sweep would cost; nothing is measured or written."""
    from anchorlens.protocols.study import study_plans

    found: list[dict[str, Any]] = []
    empty: list[str] = []
    for one in study_plans(study):
        if one.plan is None:
            empty.append(one.why)
            continue
        own = {"model": one.model, "dataset": one.dataset, "protocol": one.protocol, "rows": one.plan.questions}
        found.append({**own, "seconds": round(one.plan.seconds, 2), **one.plan.to_dict()})
        if not as_json:
            which = f" ({one.protocol})" if len(study.specifications) > 1 else ""
            click.echo(f"{one.model} on {one.dataset}{which}: {one.plan}")
    if not found:
        raise EmptySweepError(" ".join(dict.fromkeys(empty)))
    for said in empty:
        note(translated(said))
    if as_json:
        click.echo(json.dumps(found))
    if empty:
        sys.exit(1)


__all__ = ["measure", "plan_only"]
