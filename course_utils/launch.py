"""Launch a script on several ranks, stream what they print, stop them whatever happens, and return a `Run`."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .engines import KEEP_MEMORY, RESTARTS, Handle, LaunchLost, Request, local, sbatch, slurm, torchrun
from .failure import LaunchError, RankError, explain
from .folders import new_run_folder
from .machine import Machine, Placement, place
from .results import launcher_statuses, read_ranks
from .run import Provenance, Run, Sweep
from .stream import ProgressBar, Stream

ENGINES = ("auto", "local", "cold", "torchrun", "slurm")
# What the kernel and a cluster's job leak into their children, and what would mislead a rank.
_LEAKED = ("JPY_", "JUPYTER", "SLURM_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_", "COURSE_STORE", "COURSE_LINK", "PYDEVD_")
_LEAKED_NAMES = {
    "MPLBACKEND", "FORCE_COLOR", "CLICOLOR_FORCE", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip
POLL_S = 0.05


def launch(
    script: str | os.PathLike[str],
    ranks: int | str = "auto",
    args: Sequence[object] = (),
    timeout: float = 120,
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
) -> Run:
    """Run a script file on several ranks, as torchrun would, and wait for all of them.

    script         path of a complete torch.distributed program
    ranks          how many; "auto": one for each GPU where there are two or more, otherwise 2
    args           its command line; every value is turned into a string
    timeout        seconds from the start of the ranks until they are stopped and their stacks shown
    engine         "local" (warm where possible), "cold" (every rank a new Python), "torchrun", "slurm" (a job of a cluster), or "auto": torchrun
                   for restarts, otherwise what COURSE_ENGINE says, or local
    env            variables to add for the ranks; None as a value removes one
    nodes          machines that Slurm is asked for; `ranks` are those of all nodes together
    gpus_per_rank  GPUs of each rank, or "all"
    threads        threads of each rank; otherwise the cores are shared out
    device         "auto", "cuda", "cpu", or "shared": all ranks on one GPU over gloo
    max_restarts   how often torchrun restarts all ranks after a failure
    check          False returns the Run of a failed launch instead of raising
    quiet          True shows nothing while the ranks run
    dry            True starts nothing: it shows the file that Slurm would get, or with engine="torchrun" the command for each node
    detach         True leaves a job of Slurm to itself once it is submitted; `Run.load(PATH).refresh()` looks at it later

    Raises LaunchError before anything starts when the arguments are wrong, RankError when a rank fails or time runs out
    (its `.run` keeps the records), KeyboardInterrupt when you interrupt.
    """
    path = checked_script(script)
    if engine == "auto" and not max_restarts:
        engine = os.environ.get("COURSE_ENGINE", "auto")  # lets a whole notebook run on another engine
    _check_arguments(args, timeout, engine, env, nodes, max_restarts, dry, detach)
    cluster = engine == "slurm" or dry
    machine = Machine.here()
    try:
        site = sbatch.load_site() if cluster else sbatch.Site()
        placement = sbatch.place_job(site, nodes, ranks, gpus_per_rank, device, threads) if cluster else place(machine, ranks, gpus_per_rank, device, threads)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    cwd, rank_env = _working_folder(), _environment(placement, env, cluster)
    if not quiet:
        print(placement.sentence, flush=True)
    through_torchrun = engine == "torchrun" or (engine == "auto" and max_restarts > 0)
    asked_for_new = engine == "cold" or through_torchrun or cluster
    why_cold = "" if asked_for_new else local.server.why_cold(rank_env)
    # From here on an interrupt has to end the ranks first, and waits for its turn.
    with _deferred_interrupt() as interrupted:
        folder = new_run_folder()
        request = Request(
            script=str(path),
            args=[str(a) for a in args],
            world_size=placement.ranks,
            env=rank_env,
            cwd=cwd,
            folder=str(folder),
            timeout=float(timeout),
            package_path=str(Path(__file__).resolve().parent.parent),
            kernel_pid=os.getpid(),
            max_restarts=max_restarts,
        )
        stream = Stream(folder, placement.ranks, quiet)
        try:
            if engine == "slurm":
                slurm.write(request, placement, site, nodes, env or {})
            if dry:
                return _dry(request, placement, nodes, engine, site.interface, quiet)
            job = slurm.start(request, nodes, quiet, detach) if engine == "slurm" else None
        except ValueError as error:
            raise LaunchError(str(error)) from None
        if job is not None:
            handle: Handle = job
        elif through_torchrun:
            handle = torchrun.start(request)
        elif asked_for_new:
            handle = local.start_cold(request)
        else:
            handle, why_cold = local.start(request, why_cold)
        try:
            if why_cold and not quiet:
                print(f"Cold start, a few seconds slower: {why_cold}.", flush=True)
            outcome = _follow(handle, stream, interrupted)
        finally:
            handle.close()
        run = _collect(request, placement, handle.where or str(machine), handle.start, outcome, stream.records)
        run.save(folder / "run.json")
    if detach:
        return run
    if run.outcome == "interrupted":
        stop = KeyboardInterrupt(f"the launch was stopped; its records so far are kept in {folder}")
        stop.run = run  # type: ignore[attr-defined]
        raise stop
    if check and not run.ok:
        raise explain(run, {int(r): s["time"] for r, s in outcome["ranks"].items() if "time" in s}, request.timeout)
    return run


def _dry(request: Request, placement: Placement, nodes: int, engine: str, interface: str, quiet: bool) -> Run:
    """Show what would be started, and keep it as a run that did not."""
    if engine == "slurm":
        shown = Path(request.command[1]).read_text()
    else:
        commands = sbatch.torchrun_commands(request.script, nodes, placement.ranks // nodes, request.args, request.max_restarts, interface)
        shown = "".join(f"# on node {i}\n{command}\n" for i, command in enumerate(commands))
        if not interface:
            shown += "# Where a node's own name stands for 127.x.x.x, name the network that reaches the others: GLOO_SOCKET_IFNAME=eth0 torchrun ...\n"
        request.command = ["torchrun"]
    if not quiet:
        print(shown, end="", flush=True)
    run = _collect(request, placement, "", engine, {"cause": "dry", "wall_s": float("nan"), "ranks": {}}, [[] for _ in range(placement.ranks)])
    run.command = run.command if engine == "slurm" else shown
    run.save(Path(request.folder, "run.json"))
    return run


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise LaunchError("the kernel's working folder has been removed; go to another one with %cd") from None


def checked_script(script: str | os.PathLike[str]) -> Path:
    """The absolute path of a script that is there and is valid Python; otherwise raises LaunchError."""
    try:
        path = Path(script).expanduser().resolve()
        there = path.is_file()
    except (TypeError, ValueError, OSError) as error:
        raise LaunchError(f"{script!r} is not the path of a script ({error})") from None
    if not there:
        raise LaunchError(f"there is no script {path}")
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}: {(error.text or '').strip()}" if isinstance(error, SyntaxError) and line else ""
        raise LaunchError(f"{path.name} is not valid Python{where} ({getattr(error, 'msg', error)})") from None
    return path


def _check_arguments(
    args: Sequence[object], timeout: float, engine: str, env: Mapping[str, str | None] | None, nodes: int, max_restarts: int, dry: bool, detach: bool
) -> None:
    if isinstance(args, (str, bytes)) or not isinstance(args, Iterable):
        raise LaunchError(f"args must be a list, one element for each word of the command line; got {args!r}")
    if env is not None and not (isinstance(env, Mapping) and all(isinstance(name, str) and name and "=" not in name for name in env)):
        raise LaunchError(f"env must be a dict of names and values, as in {{'NCCL_DEBUG': 'INFO'}}; got {env!r}")
    if engine not in ENGINES:
        raise LaunchError(f"unknown engine {engine!r}; choose {', '.join(ENGINES)}")
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
        raise LaunchError(f"timeout must be a number of seconds above 0; got {timeout!r}")
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise LaunchError(f"nodes must be a whole number from 1 on; got {nodes!r}")
    if detach and engine != "slurm":
        raise LaunchError(f"only a job of Slurm can be left to itself; engine {engine!r} cannot detach")
    if dry and engine not in ("slurm", "torchrun"):
        raise LaunchError(f"engine {engine!r} has nothing to show; dry is for engine 'slurm' (its file) and 'torchrun' (the command for each node)")
    if nodes > 1 and engine == "torchrun" and not dry:
        raise LaunchError("torchrun has to be started on each node by itself: dry=True (--dry) prints the commands, engine 'slurm' does it for you")
    if nodes > 1 and engine != "slurm" and not dry:
        raise LaunchError(f"engine {engine!r} starts ranks on this machine only; nodes must be 1, got {nodes!r}, or choose engine 'slurm'")
    if not isinstance(max_restarts, int) or isinstance(max_restarts, bool) or max_restarts < 0:
        raise LaunchError(f"max_restarts must be a whole number from 0 on; got {max_restarts!r}")
    if max_restarts and engine not in ("auto", "torchrun", "slurm"):
        raise LaunchError(f"engine {engine!r} does not restart ranks; leave the engine out or choose 'torchrun'")


def _environment(placement: Placement, extra: Mapping[str, str | None] | None, cluster: bool = False) -> dict[str, str]:
    env = KEEP_MEMORY | {k: v for k, v in os.environ.items() if not k.startswith(_LEAKED) and k not in _LEAKED_NAMES}
    if cluster:
        env = {k: v for k, v in env.items() if k not in ("CUDA_VISIBLE_DEVICES", "TMPDIR")}  # which are this machine's
        env |= {k: v for k, v in os.environ.items() if k == "SLURM_CONF"}
    else:
        loopback = "lo0" if os.uname().sysname == "Darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            env.setdefault(name, loopback)  # ranks of one machine have no business on the network
    env |= {"MPLBACKEND": "Agg", **placement.env}
    for name, value in (extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """In the main thread, turn Ctrl-C into an event: an exception in the wrong place would leave a launch half stopped."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous or signal.default_int_handler)


def _follow(handle: Handle, stream: Stream, interrupted: threading.Event) -> dict[str, Any]:
    """Wait for the outcome, showing the ranks' output meanwhile."""
    stopping = False
    try:
        while (outcome := handle.wait(POLL_S)) is None:
            if interrupted.is_set() and not stopping:
                stopping = True
                handle.stop()
            stream.pump()
    except LaunchLost:
        outcome = {"cause": "interrupted" if stopping else "lost", "wall_s": float("nan"), "ranks": {}}
    stream.pump(last=True)
    if interrupted.is_set() and outcome["cause"] == "":
        outcome["cause"] = "interrupted"  # it came while the last ranks were ending
    return outcome


def _collect(request: Request, placement: Placement, machine: str, start: str, outcome: dict[str, Any], records: list[list[dict[str, Any]]]) -> Run:
    folder = Path(request.folder)
    statuses: dict[int, dict[str, Any]] = {int(rank): status for rank, status in outcome["ranks"].items()}
    if request.command:
        statuses = launcher_statuses(folder, request.world_size, statuses.get(-1, {}).get("exitcode") == 0)
    ranks = read_ranks(folder, request.world_size, statuses, records)
    cause = outcome["cause"] or ("failed" if not all(r.ok for r in ranks) else "finished")
    return Run(
        ranks=ranks,
        script=request.script,
        args=request.args,
        command=_by_hand(request, placement),
        engine=start,
        placement=placement.sentence,
        wall_s=outcome["wall_s"],
        path=request.folder,
        outcome=cause,
        provenance=Provenance.here(machine),
        job=outcome.get("job"),
    )


def _by_hand(request: Request, placement: Placement) -> str:
    """The command that repeats this launch from a terminal."""
    if request.command[:1] == ["sbatch"]:
        return shlex.join(request.command)
    changed = {"CUDA_VISIBLE_DEVICES": "", **KEEP_MEMORY} if placement.device == "cpu" else {}
    changed |= RESTARTS if request.max_restarts else {}
    given = " ".join(f"{name}={value}" for name, value in {**changed, "OMP_NUM_THREADS": placement.threads}.items())
    restarts = f" --max-restarts={request.max_restarts}" if request.max_restarts else ""
    return f"{given} torchrun --standalone --nproc-per-node={request.world_size}{restarts} " + shlex.join([request.script, *request.args])


_OWN_KEYS = ("ranks", "timeout", "engine", "env", "nodes", "gpus_per_rank", "threads", "device", "max_restarts")


def sweep(
    script: str | os.PathLike[str],
    over: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    repeats: int = 3,
    args: Sequence[object] = (),
    **settings: Any,
) -> Sweep:
    """Launch a script at every point of a grid, `repeats` times, and return all runs.

    over      {"ranks": [1, 2], "batch_size": [32, 64]} for every combination, or a list of points. Keys that are not arguments
              of `launch` reach the script: batch_size=32 becomes `--batch-size 32`, True a bare flag, a list several values.
    repeats   how often each point is run. Points are interleaved, so that a drift of the machine touches all alike.
    settings  arguments of `launch` that hold for all points, for example timeout=60.
    """
    if isinstance(over, Mapping):
        points = [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
    else:
        points = [dict(point) for point in over]
    if not points or repeats < 1:
        raise LaunchError("a sweep needs at least one point and one repeat")
    runs: list[list[Run]] = [[] for _ in points]
    bar = ProgressBar(f"{len(points)} points x {repeats}: ")
    total, done = len(points) * repeats, 0
    shown: set[str] = set()
    for _ in range(repeats):
        for point, results in zip(points, runs, strict=True):
            own = {k: v for k, v in point.items() if k in _OWN_KEYS}
            extra = list(itertools.chain.from_iterable(_option(k, v) for k, v in point.items() if k not in _OWN_KEYS))
            run = launch(script, args=[*args, *extra], quiet=True, **{**settings, **own})
            if run.placement not in shown:
                shown.add(run.placement)
                print(run.placement, flush=True)
            results.append(run)
            done += 1
            bar.show(done, total, last=done == total)
    return Sweep(points, runs)


def _option(key: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    name = "--" + key.replace("_", "-")
    values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
    return [name, *(str(v) for v in values)]


def warm_up() -> None:
    """Start the warm server in the background, so that the first launch finds it ready."""
    local.server.begin()


__all__ = ["LaunchError", "RankError", "launch", "sweep", "warm_up"]
