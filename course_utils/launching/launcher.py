"""Launch a script on several ranks, stream what they print, stop them whatever happens, and return a `Run`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..failure.errors import LaunchError, RankError, explain, records_of, stopped
from ..folders import PACKAGE, new_run_folder, temporary_folder
from ..machine.busy import recent
from ..machine.here import Machine
from ..results.collectives import forget, unnoticed
from ..results.provenance import Provenance
from ..results.rank_result import gather
from ..results.run import Run
from . import local
from .choice import engine_for
from .engine import Engine
from .options import LaunchOptions
from .placement import Placement
from .program import check_passable, checked_program, environment
from .rank_environment import rank_environment
from .request import Handle, Request
from .supervisor.patience import Patience
from .under_the_cell.cell import POLL_S, LaunchCell, busy_machine
from .under_the_cell.watch import OWN_PORT, left_running, news, stop


def launch(
    script: str | os.PathLike[str] | None = None,
    ranks: int | str = "auto",
    args: Sequence[object] = (),
    timeout: float | Patience | None = None,
    engine: str = "auto",
    env: Mapping[str, str | None] | None = None,
    nodes: int = 1,
    gpus_per_rank: int | str = 1,
    threads: int | None = None,
    device: str = "auto",
    max_restarts: int = 0,
    check: bool = True,
    quiet: bool = False,
    dry: bool = False,
    detach: bool = False,
    module: str = "",
    cluster: str | Mapping[str, Any] = "",
    slow: Mapping[int, float] | None = None,
    one_of: int = 0,
    host: str = "",
) -> Run:
    """Run a script file or a module on several ranks, as torchrun would, and wait for all of them.

    script         path of a complete torch.distributed program
    ranks          how many, over all nodes; "auto": one for each GPU if there are two or more, otherwise 2
    args           the program's command line; each value becomes a string
    timeout        seconds that the ranks may run; then they are stopped, and you see where each of them stood. None:
                   they're stopped when all have only waited for 120 s, or after 10 minutes
    engine         "local" (warm where possible), "cold" (every rank a new Python), "torchrun", "slurm" (a job on a
                   cluster), or "auto": torchrun if `max_restarts` is set, otherwise what COURSE_ENGINE says, or local
    env            environment variables to set for the ranks; the value None removes one
    nodes          how many machines to ask Slurm for, or to emulate
    gpus_per_rank  GPUs for each rank; "all" shares out all there are
    threads        threads for each rank; None shares out the cores
    device         "auto", "cuda" (GPUs or an error), "cpu", "shared" (all ranks on one GPU over gloo), or "comparable",
                   for launches that you'll compare: GPUs if there are two or more, otherwise the CPU, whatever `ranks`
                   is
    max_restarts   how often torchrun restarts all ranks after a failure
    check          False returns the Run of a failed launch instead of raising
    quiet          True shows nothing while the ranks run
    dry            True starts nothing, and shows the batch file for Slurm, or with engine="torchrun" the command for
                   each node
    detach         True returns as soon as Slurm has the job; `Run.load(PATH).refresh()` looks at it later
    module         a module to run instead of a script, as in `torchrun -m pkg.train`; we look for it in the working
                   folder first
    cluster        GPUs to emulate: a name such as "8xA100", "mine.toml:4xbig" for a device in a file of your own, or a
                   dict (`data/clusters.toml` has the form). The program runs unchanged on a virtual clock, where large
                   operators take modelled time and aren't computed; memory is counted. `nodes` shares the GPUs out
    slow           rank -> how many times as long its emulated GPU takes for everything: {3: 1.3} makes a straggler
    one_of         emulate `ranks` (1 if None) of so many, for more than fit here. Each stands for as many, from it on,
                   that are taken to do the same: 4 of 64 are ranks 0, 16, 32 and 48, one of each stage of a pipeline
    host           "measured" counts what the host computes between operators of emulated GPUs, as long as it took here

    Raises LaunchError before anything starts if an argument is wrong, RankError if a rank fails or time runs out (its
    `.run` keeps the records), KeyboardInterrupt if you interrupt.
    """
    asked = dict(locals())
    cwd = _working_folder()
    asked["script"] = checked_program(script, module, cwd)
    if engine == "auto" and not max_restarts and not cluster:
        asked["engine"] = os.environ.get("COURSE_ENGINE", "auto")  # for what a notebook launches; checks name an engine
    with _refusals():
        options = LaunchOptions(**asked)
        chosen = engine_for(options)
    return _launch(options, chosen, cwd)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise a ValueError from this block as a LaunchError: its message is written for the learner."""
    try:
        yield
    except ValueError as error:
        raise LaunchError(str(error)) from None


def _launch(options: LaunchOptions, engine: Engine, cwd: str) -> Run:
    """Place the ranks, start them, follow them, and gather what they left."""
    machine, cell = Machine.here(), LaunchCell(options.quiet)
    with _refusals():
        placement = engine.place(machine)
    env = rank_environment(machine, placement, options.env, engine.elsewhere)
    check_passable(env, options.args)
    cell.say(news(placement.sentence), wrap=True)
    root = cwd if options.module else os.path.dirname(os.path.realpath(options.script))
    changes = environment(options.script, Path(root))
    own_port = "MASTER_PORT" in changes.names and not engine.elsewhere
    with cell:
        cell.await_start(lambda: engine.prepare(env, changes, root, POLL_S))
        request = _request(options, placement, env, cwd, agent_store=not own_port, here=not engine.elsewhere)
        if options.dry:
            with _refusals():
                return _dry(request, placement, engine, options)
        handle = _started(engine, request, placement)
        try:
            cell.say(handle.note)
            cell.say(OWN_PORT * own_port)
            doing = "emulating (these seconds are real)" if placement.emulated else "running"
            outcome, records = cell.follow(handle, Path(request.folder), placement.ranks, doing)
        finally:
            handle.close()
        if outcome["cause"] == "not started":
            raise LaunchError(f"couldn't start the ranks: {outcome['why']}{_cure(outcome['why'])}")
        run = _gathered(request, placement, engine, outcome, records, handle.start, handle.where or str(machine))
        if run.others:
            recent.append((run.others[0], run.others[1]))
        unsaved = _save(run)
        if not options.detach:
            cell.end(run)
    cell.say(unsaved, wrap=True)
    if options.detach:
        return run
    if run.outcome == "interrupted":
        raise stop(stopped(run), run)
    if run.ok and not options.quiet:
        if odd := unnoticed(records_of(run).calls):
            cell.say(f"Nothing failed, but the ranks did not call the same collectives. {odd}")
        cell.say(left_running(outcome.get("left", ())))
        cell.say(busy_machine([run], machine), wrap=True)
    if run.ok:
        forget(Path(request.folder), placement.ranks)
    elif options.check:
        times = {int(r): s["time"] for r, s in outcome["ranks"].items() if "time" in s}
        raise explain(run, times, outcome.get("why") or f"did not end within its timeout of {request.timeout:g} s")
    return run


def _started(engine: Engine, request: Request, placement: Placement) -> Handle:
    try:
        with _refusals():
            return engine.start(request, placement)
    except OSError as error:
        raise LaunchError(f"couldn't start the ranks: {error}") from None


def _request(
    options: LaunchOptions, placement: Placement, env: dict[str, str], cwd: str, agent_store: bool, here: bool
) -> Request:
    """The request for the engine, with a new folder for the files that the ranks leave, and if they run `here`, the
    kernel's folder for temporary files."""
    try:
        folder = new_run_folder()
    except OSError as error:
        raise LaunchError(
            f"couldn't make a folder for this launch's logs ({error}); free some space there, or set COURSE_HOME to"
            " another folder"
        ) from None
    try:
        tmp = str(temporary_folder(env.get("TMPDIR", ""))) if here else ""
    except OSError as error:
        raise LaunchError(f"couldn't make a folder for temporary files: {error}{_cure(str(error))}") from None
    env = env | {"TMPDIR": os.path.join(tmp, "tmp")} if here else env
    return Request(
        script=str(options.script),
        args=[str(a) for a in options.args],
        world_size=placement.ranks,
        env=env,
        cwd=cwd,
        folder=str(folder),
        timeout=options.seconds,
        patience=options.patience,
        package_path=str(PACKAGE.parent),
        kernel_pid=os.getpid(),
        tmp=tmp,
        module=options.module,
        agent_store=agent_store,
    )


def _save(run: Run) -> str:
    """Save a run in its folder. Returns what to say if that fails: the ranks have run, whatever the disk says."""
    try:
        run.save(Path(run.path, "run.json"))
    except OSError as error:
        why = error.strerror or str(error)
        return (
            f"The run couldn't be saved in {run.path} ({why}), so Run.load won't find it; you have it here all the"
            " same. Free some space there, or set COURSE_HOME to another folder."
        )
    return ""


def _dry(request: Request, placement: Placement, engine: Engine, options: LaunchOptions) -> Run:
    """Show what would be started, and save it as a run that never started."""
    shown = engine.dry(request, placement)
    if not options.quiet:
        print(shown, end="", flush=True)
    nothing = {"cause": "dry", "wall_s": float("nan"), "ranks": {}}
    records: list[list[dict[str, Any]]] = [[] for _ in range(placement.ranks)]
    run = _gathered(request, placement, engine, nothing, records, start=options.engine, machine="")
    run.save(Path(request.folder, "run.json"))
    return run


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise LaunchError("the kernel's working folder has been removed; go to another one with %cd") from None


def _cure(why: str) -> str:
    if os.strerror(errno.ENOSPC) in why:
        return ". Free some space there, or set TMPDIR to a folder that has some"
    return ". Other programs may be using it; try fewer ranks" if os.strerror(errno.ENOMEM) in why else ""


def _gathered(
    request: Request,
    placement: Placement,
    engine: Engine,
    outcome: dict[str, Any],
    records: list[list[dict[str, Any]]],
    start: str,
    machine: str,
) -> Run:
    """The Run of a launch that has ended, built from what its ranks left. `start` says how they were started,
    `machine` where."""
    ranks, cause = gather(Path(request.folder), request.world_size, outcome, records, engine.by_torchrun)
    return Run(
        ranks=ranks,
        script=request.script,
        args=request.args,
        command=engine.by_hand(request, placement),
        engine=start,
        placement=placement.sentence,
        wall_s=outcome["wall_s"],
        path=request.folder,
        outcome=cause,
        provenance=Provenance.here(placement.emulated or machine, "emulated" if placement.emulated else "measured"),
        others=None if placement.emulated else outcome.get("others"),  # a virtual clock doesn't mind a busy machine
        job=outcome.get("job"),
    )


def warm_up() -> None:
    """Start the warm server in the background, so that the first launch finds it ready."""
    local.server.begin()


def cool_down() -> None:
    """Stop the warm server. Launches that are running go on; the next launch starts another server."""
    local.server.stop()


__all__ = ["LaunchError", "RankError", "cool_down", "launch", "warm_up"]
