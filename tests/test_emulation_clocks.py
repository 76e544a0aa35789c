"""What takes time on the virtual clock besides the GPU: sleeping, asking again, loading data; which clocks show it."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course_utils.emulation import polls
from course_utils.emulation.clock import Clock
from course_utils.emulation.remarks import whose
from course_utils.launching.launcher import launch

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all


# --- polling, in a real world that's pretended too --------------------------------------------------------------------


class World:
    """Real time, that passes only when somebody sleeps, and the sleeps of a program in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 0.0
        monkeypatch.setattr(polls, "_sleep", self.sleep)
        monkeypatch.setattr(polls, "_clock", lambda: self.now)
        self.clock = Clock()
        gpus: Any = SimpleNamespace(clock=self.clock, device=SimpleNamespace(host_s=6e-6))
        self.polls = polls.Polls(gpus, SimpleNamespace(on=True))  # type: ignore[arg-type]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def question(self, answer: Callable[[], Any]) -> Callable[[], Any]:
        found: Callable[[], Any] = self.polls._noted(World, answer)
        return found

    def sleeps(self, seconds: float) -> None:
        self.polls.sleep(World.sleep.__code__, 0, seconds)


@pytest.mark.parametrize(
    ("pause_s", "real_s", "counted_s"),
    [
        (0.5, 0.2, 0.5),  # as on a real machine: the number of sleeps that it takes
        (0.5, 1.2, 1.5),
        (0.01, 0.195, 0.2),
        (60.0, 0.2, 60.0),
        (3600.0, 25.0, 3 * 3600.0),  # a long one lasts ten real seconds at most
        (0.5, 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("asks", ["before", "after"])
def test_a_poll_takes_as_many_sleeps_as_on_a_real_machine(
    monkeypatch: pytest.MonkeyPatch, pause_s: float, real_s: float, counted_s: float, asks: str
) -> None:
    world = World(monkeypatch)
    there = world.question(lambda: world.now >= real_s)
    if asks == "before":
        while not there():
            world.sleeps(pause_s)
        assert world.clock.host == pytest.approx(counted_s)
    else:  # the question is known only after the first sleep, so there may be one sleep more
        world.sleeps(pause_s)
        while not there():
            world.sleeps(pause_s)
        assert max(pause_s, counted_s) <= world.clock.host + 1e-9 and world.clock.host <= counted_s + pause_s + 1e-9
    assert world.now <= real_s + pause_s + 0.01, "no longer than the real program"


def test_sleeps_that_wait_for_nothing_real_are_exact_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.sleeps(3600)
    for _ in range(1000):
        world.sleeps(0.01)
    assert world.clock.host == sum([0.01] * 1000, 3600.0), "to the last digit"
    assert world.now < 1.0 and world.clock.slept == world.clock.host


@pytest.mark.parametrize("between", ["work", "another question", "nothing"])
def test_what_is_no_poll(monkeypatch: pytest.MonkeyPatch, between: str) -> None:
    """A loop that also works, one that asks of something else each time, and a question long before a sleep."""
    world = World(monkeypatch)
    there = world.question(lambda *_: False)
    for step in range(20 if between != "nothing" else 1):
        there(step) if between == "another question" else there()
        world.sleeps(100.0)
        world.clock.host += 1.0 * (between == "work")
    assert world.now < 0.1
    assert world.clock.slept == (2000.0 if between != "nothing" else 100.0)


def test_two_polls_in_a_row_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    world, ends = World(monkeypatch), [0.2, 0.3]
    questions = [world.question(lambda end=end: world.now >= end) for end in ends]
    for there in questions:
        while not there():
            world.sleeps(0.5)
    assert world.clock.host == 1.0 or world.clock.host == 0.5, "the second had ended by then"
    assert world.now < 0.6


def in_a_loop() -> None:
    for _ in range(2):
        len("in")
    len("out")


def test_loops_are_told_from_lines_that_run_once() -> None:
    import dis

    calls = [i.offset for i in dis.get_instructions(in_a_loop) if i.opname.startswith("CALL")]
    assert [polls._in_a_loop(in_a_loop.__code__, at) for at in (calls[-2], calls[-1])] == [True, False]


def test_whose_code_it_is() -> None:
    import subprocess

    import torch.utils.data

    import course_utils.rank

    files = [torch.utils.data.__file__, subprocess.__file__, pytest.__file__, __file__, course_utils.rank.__file__]
    assert [whose(str(file)) for file in files] == ["torch", "python", "package", "program", "program"]
    assert whose("<timeit-src>") == "program" and whose("<frozen os>") == "python"


# --- launches ---------------------------------------------------------------------------------------------------------

HEAD = """import os, sys, time, torch, torch.distributed as dist
from course_utils.rank import device, report
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Launch a program on an emulated cluster. Returns the Run, which also has what was `said`."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))

    def start(program: str, ranks: int = 1, **more: Any) -> Any:
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(program).lstrip("\n"))
        found: Any = launch(script, ranks, cluster="2xA100", quiet=True, timeout=100, **more)
        log = (Path(found.path) / "rank0.log").read_text()
        found.said = [line for line in log.splitlines() if line.startswith("emulated:")]
        return found

    return start


def test_every_clock_is_virtual(run: Callable[..., Any]) -> None:
    found = run("""
        import copy, datetime, importlib.util, pickle, sys, timeit
        from datetime import datetime as moment
        from torch.utils.benchmark import Timer
        a = torch.randn(4096, 4096, device=device())
        def took(clock):
            torch.cuda.synchronize()
            begun = clock()
            a @ a
            torch.cuda.synchronize()
            return clock() - begun
        exact = took(time.perf_counter)
        clocks = {name: getattr(time, name) for name in ("time", "monotonic", "process_time", "thread_time")}
        clocks |= {f"{name}_ns": lambda c=getattr(time, f"{name}_ns"): c() / 1e9 for name in ("perf_counter", *clocks)}
        clocks["gettime"] = lambda: time.clock_gettime(time.CLOCK_MONOTONIC)
        clocks["now"] = lambda: moment.now().timestamp()
        clocks["utcnow"] = lambda: moment.utcnow().timestamp()
        clocks["timeit"] = timeit.default_timer
        report(exact=exact, **{f"by_{name}": took(clock) for name, clock in clocks.items()})
        multiply = "a @ a; torch.cuda.synchronize()"
        report(timed=timeit.timeit(multiply, globals=globals(), number=10) / 10,
               bench=Timer("a @ a", globals=globals()).timeit(10).median,
               auto=Timer("a @ a", globals=globals()).blocked_autorange(min_run_time=1e-3).median)

        def counted(clock, seconds):
            begun = clock()
            time.sleep(seconds)
            return clock() - begun
        assert 3600 <= counted(time.monotonic, 3600) < 3601 and counted(time.process_time, 3600) < 1e-5
        assert counted(moment.now, 86400) >= datetime.timedelta(days=1)
        assert counted(lambda: time.mktime(time.localtime()), 3600) in (3600, 3601)

        # A loop that waits for a time comes to its end, and not by ten million steps.
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < 1:
            steps += 1
        assert steps < 200_000 and time.perf_counter() - begun < 1.0001

        # What stands in for `time` and `datetime` is used as they are.
        class Own:
            ask, converter = time.time, time.gmtime
        assert Own().ask() > 1e9 and Own().converter(0).tm_year == 1970
        assert pickle.loads(pickle.dumps(time.time)) is time.time and copy.deepcopy(time.sleep) is time.sleep
        real = moment.__mro__[1]
        assert isinstance(real(2020, 1, 1), datetime.datetime) and real(2020, 1, 1) == moment(2020, 1, 1)
        assert pickle.loads(pickle.dumps(real(2020, 1, 1))) == moment(2020, 1, 1)
        assert pickle.loads(pickle.dumps(moment.now())) and b"datetime" in pickle.dumps(moment.now())
        assert repr(moment(2020, 1, 1)) == "datetime.datetime(2020, 1, 1, 0, 0)"
        class Later(moment): pass
        assert not isinstance(moment(2020, 1, 1), Later) and isinstance(Later(2020, 1, 1), moment)
        assert moment.strptime("2020", "%Y") - moment(2019, 1, 1) == datetime.timedelta(365)

        # A module written in C may build on the class: pandas did, and crashed.
        found, own = [], datetime.datetime
        sys.addaudithook(lambda event, args: found.append(datetime.datetime) if event == "import" and args[1] else None)
        name = next(name for name in ("xxlimited", "_xxtestfuzz", "_testcapi") if name not in sys.modules
                    and importlib.util.find_spec(name))
        __import__(name)
        assert found == [real] and datetime.datetime is own is moment

        # What only the host does takes no modelled time: a benchmark of it is real, and ends.
        begun = time.perf_counter()
        report(host=Timer("sorted(x)", globals={"x": list(range(10_000))}).blocked_autorange(min_run_time=1e-2).median,
               auto_host=timeit.Timer("sorted(x)", globals={"x": list(range(10_000))}).autorange()[1])
        assert time.perf_counter() - begun < 1e-2
    """)
    records = found.ranks[0].records
    exact = records[0].pop("exact")
    assert 1e-3 < exact < 0.1
    for name, seconds in (records[0] | records[1]).items():
        if name not in ("time", "rank"):
            assert seconds == pytest.approx(exact, rel=1e-2), name
    assert records[2]["host"] > 1e-6 and records[2]["auto_host"] > 0.1
    assert [line.split(": ")[1].split(" (")[0] for line in found.said][:1] == [
        "timeit measures what only the host does in real time, and it takes no modelled time"
    ]


def test_who_waits_for_something_real_has_real_time(run: Callable[..., Any]) -> None:
    """Limits of Python's own library and of torch, in real time, which costs nothing; polls of a child, of another
    rank's file and of a thread."""
    found = run(
        """
        import asyncio, concurrent.futures, datetime, multiprocessing, queue, subprocess, threading
        rank = int(os.environ["RANK"])
        here = os.path.dirname(os.path.abspath(__file__))
        begun = time.perf_counter()
        def refused(error, call, *args, **kwargs):
            try:
                call(*args, **kwargs)
            except error:
                return
            raise AssertionError(f"{call} had no limit")
        forever = concurrent.futures.Future()
        refused(queue.Empty, queue.Queue().get, timeout=0.02)
        refused(queue.Empty, multiprocessing.Queue().get, timeout=0.02)
        refused(concurrent.futures.TimeoutError, forever.result, timeout=0.02)
        refused(concurrent.futures.TimeoutError, lambda: list(concurrent.futures.as_completed([forever], 0.02)))
        refused(asyncio.TimeoutError, asyncio.run, asyncio.wait_for(asyncio.sleep(60), 0.02))
        assert not threading.Event().wait(0.02) and not multiprocessing.Event().wait(0.02)
        ends = multiprocessing.Pipe()
        assert not multiprocessing.connection.wait(ends[:1], 0.02)
        subprocess.run(["sleep", "0.05"], timeout=60)
        refused(subprocess.TimeoutExpired, subprocess.run, ["sleep", "60"], timeout=0.05)
        dist.init_process_group()
        store = dist.distributed_c10d._get_default_store()
        refused(RuntimeError, store.wait, ["never"], datetime.timedelta(seconds=0.1))
        assert time.perf_counter() - begun < 1e-3, "and none of it costs anything"

        def polled(wait):
            begun = time.perf_counter()
            wait()
            return time.perf_counter() - begun
        def child():
            p = subprocess.Popen(["sleep", "0.2"])
            while p.poll() is None:
                time.sleep(0.5)
        def process():
            p = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.2,))
            p.start()
            while p.is_alive():
                time.sleep(0.5)
            p.join()
        def other():
            if rank == 0:
                subprocess.run(["sleep", "0.2"])
                open(os.path.join(here, "there"), "w").close()
            while not os.path.exists(os.path.join(here, "there")):
                time.sleep(0.1)
        def told():
            if rank == 0:
                subprocess.run(["sleep", "0.2"])
                store.set("told", "yes")
            while not store.check(["told"]):
                time.sleep(0.1)
        def flag():
            found = []
            threading.Thread(target=lambda: (time.sleep(0.2), found.append(1))).start()
            while not found:
                time.sleep(0.1)
        def late():
            end = time.time() + 0.3
            while not os.path.exists("never") and time.time() < end:
                time.sleep(0.1)
        def threads():
            def until():
                end = time.time() + 0.1
                while time.time() < end:
                    time.sleep(0.05)
            t = threading.Thread(target=until)
            t.start()
            t.join()
        report(**{f.__name__: polled(f) for f in (child, process, other, told, flag, late, threads)})

        # What a GPU does is asked for on the virtual clock, and what has ended then needs no other wait.
        dist.barrier()
        begun, x = time.perf_counter(), torch.zeros(2, device=device())
        if rank == 1:
            time.sleep(5)
            dist.send(torch.ones(2, device=device()), 0)
        else:
            work = dist.irecv(x, 1)
            while not work.is_completed():
                time.sleep(0.5)
            assert (x + 1).tolist() == [2.0, 2.0]
        report(came=time.perf_counter() - begun)
        x = torch.ones(1 << 26, device=device())
        work = dist.all_reduce(x, async_op=True)
        while not work.is_completed():
            time.sleep(1e-4)
        x + 1
        dist.destroy_process_group()
        """,
        2,
    )
    zero, one = (found.ranks[rank].records[0] for rank in (0, 1))
    # Their number depends on the machine: these limits only tell them from 492 s.
    assert 0.499 < zero["child"] < 20 and 0.499 < zero["process"] < 20
    assert 0.099 < one["other"] < 20 and 0.099 < one["told"] < 20 and zero["other"] < 1e-3 and 0.099 < zero["flag"] < 60
    assert 0.299 < zero["late"] < 0.41 and zero["threads"] < 1e-3
    assert 5.0 < found.ranks[0].records[1]["came"] < 5.6 and found.said == []


LOADER = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        time.sleep(0.05)
        return torch.full((2,), float(i))
def arrivals(step_s, **more):
    begun, found = time.perf_counter(), []
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, **more):
        found.append(time.perf_counter() - begun)
        assert batch.tolist() == [[2.0 * len(found) - 2] * 2, [2.0 * len(found) - 1] * 2]
        time.sleep(step_s)
    return found
"""


def pipeline(step_s: float, num_workers: int, prefetch_factor: int) -> list[float]:
    """When twelve batches of 0.1 s each arrive."""
    free, done, now, found = [0.0] * num_workers, [], 0.0, []

    def ask(now: float) -> None:
        worker = len(done) % num_workers
        free[worker] = max(free[worker], now) + 0.1
        done.append(free[worker])

    for _ in range(num_workers * prefetch_factor):
        ask(now)
    for batch in range(12):
        now = max(now, done[batch])
        found.append(now)
        ask(now)
        now += step_s
    return found


def test_a_loaders_workers_keep_a_rank_waiting_as_real_ones(run: Callable[..., Any]) -> None:
    program = (
        LOADER
        + """
report(alone=arrivals(0.03, num_workers=0), starved=arrivals(0.03, num_workers=2, pin_memory=True),
       fed=arrivals(0.3, num_workers=2, prefetch_factor=1), more=arrivals(0.03, num_workers=3, prefetch_factor=4))
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for i in range(4):
            time.sleep(0.1)
            yield i
begun = time.perf_counter()
kept = torch.utils.data.DataLoader(Stream(), batch_size=None, num_workers=1, persistent_workers=True)
report(streamed=[time.perf_counter() - begun for _ in range(2) for _ in kept])
"""
    )
    first, again = (json.dumps([r for rank in run(program).ranks for r in _untimed(rank.records)]) for _ in range(2))
    assert first == again, "the same to the last digit"
    found = json.loads(first)
    assert found[0]["alone"] == pytest.approx([0.1 + 0.13 * i for i in range(12)], abs=1e-4)
    assert found[0]["starved"] == pytest.approx(pipeline(0.03, 2, 2), abs=1e-4)
    assert found[0]["fed"] == pytest.approx(pipeline(0.3, 2, 1), abs=1e-4)
    assert found[0]["more"] == pytest.approx(pipeline(0.03, 3, 4), abs=1e-4)
    assert found[1]["streamed"] == pytest.approx([0.1 * i for i in range(1, 9)], abs=1e-4)


def test_the_hosts_work_counts_if_asked_for(run: Callable[..., Any]) -> None:
    """In seconds of a processor, which the program itself can read: nobody else's work is in them."""
    program = """
        def compute(i=0):
            for _ in range(3_000_000):
                i += 1
            return i
        def counted(work):
            begun, spent = time.perf_counter(), sum(os.times()[:4])
            work()
            return [time.perf_counter() - begun, sum(os.times()[:4]) - spent]
        class Decoded(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, i):
                return compute(i)
        a = torch.randn(4096, 4096, device=device())
        def operators():
            for _ in range(100):
                a @ a
        report(python=counted(compute), operators=counted(operators)[0],
               loaded=counted(lambda: list(torch.utils.data.DataLoader(Decoded(), num_workers=2))))
    """
    found, without = run(program, host="measured"), run(program)
    assert found.provenance.machine == "2xA100, host measured" and without.provenance.machine == "2xA100"
    found, without = found.ranks[0].records[0], without.ranks[0].records[0]
    seconds, spent = found["python"]
    assert 0.5 * spent < seconds < spent + 0.03, "os.times counts hundredths of a second"
    assert found["loaded"][0] > seconds and without["loaded"][0] < without["python"][0] + 1e-5 < 1e-4
    assert found["operators"] == pytest.approx(without["operators"], abs=0.05)


def _untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "time"} for record in records]


def test_this_process_keeps_its_own_clocks() -> None:
    import datetime
    import time

    assert type(time.time).__name__ == "builtin_function_or_method" and "emulat" not in repr(os.path.exists)
    assert datetime.datetime.__mro__[1] is datetime.date
