"""The clocks that a program can ask are the virtual one: those of `time`, `datetime.now`, `timeit`.

Python's own library and torch wait for what is real, such as a process or a message. They keep the real
`time.monotonic`, and sleep in real time, which costs nothing on the virtual clock.
"""

from __future__ import annotations

import copyreg
import datetime
import functools
import importlib.machinery
import operator
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .imports import after_import
from .polls import Polls, in_main_thread
from .remarks import say, whose
from .state import Gpus

READ_S = 1e-7  # reading a clock, so that a loop which waits for a time comes to its end
SPIN_S = 1e-5  # the most that a reading takes, in a loop that does nothing else: or it would be run 10 million times
_NAMES = (
    "time perf_counter monotonic process_time thread_time time_ns perf_counter_ns monotonic_ns process_time_ns"
    " thread_time_ns clock_gettime clock_gettime_ns localtime gmtime ctime strftime asctime sleep"
).split()
_REAL = {name: getattr(time, name) for name in _NAMES if hasattr(time, name)}
_BY_ID = {
    "CLOCK_REALTIME": "time", "CLOCK_MONOTONIC": "monotonic", "CLOCK_MONOTONIC_RAW": "monotonic",
    "CLOCK_BOOTTIME": "monotonic", "CLOCK_PROCESS_CPUTIME_ID": "process_time", "CLOCK_THREAD_CPUTIME_ID": "thread_time",
}  # fmt: skip


class _Function:
    """A function of `time`. Like those of C it isn't bound as an attribute of a class, and is pickled by its name."""

    def __init__(self, name: str, call: Callable[..., Any]):
        self.__name__ = self.__qualname__ = name
        self.__module__, self.__doc__ = "time", _REAL[name].__doc__
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return f"<function {self.__name__} of an emulated cluster>"


class _Thread(threading.local):
    at = 0.0  # how far a thread other than the main one has come, by sleeping and by reading its clock


class HostClocks:
    """The clocks of a process, virtual while they're `on`. They're off in a process that was forked, unless it's a
    DataLoader's worker."""

    def __init__(self, gpus: Gpus):
        self.clock, self.on = gpus.clock, True
        self.polls = Polls(gpus, self)
        self._epoch = _REAL["time"]()
        self._thread = _Thread()
        self._last, self._spun = 0.0, 0  # what was read last, and how many readings in a row saw nothing happen

    def now(self) -> float:
        """Seconds of the host, in this thread."""
        if in_main_thread():
            self._spun = self._spun + 1 if self.clock.host == self._last else 0
            self.clock.host += min(READ_S * (1 + self._spun / 64), SPIN_S)
            self._last = self.clock.host
            return self._last
        self._thread.at = max(self._thread.at, self.clock.host) + READ_S
        return self._thread.at

    def sleep(self, seconds: float) -> None:
        """What the program sleeps counts, and hardly lasts (`polls`). Any other sleep is a wait for something real."""
        frame = sys._getframe(2)
        by = whose(frame.f_code.co_filename)
        if not isinstance(seconds, float):
            seconds = operator.index(seconds)  # as `time.sleep` does
        if not self.on or by in ("python", "torch") or not 0 <= seconds < threading.TIMEOUT_MAX:
            return _REAL["sleep"](seconds)  # which refuses what no clock can sleep
        if not in_main_thread():
            self._thread.at = max(self._thread.at, self.clock.host) + seconds
            return _REAL["sleep"](seconds)
        if by == "package":
            _REAL["sleep"](seconds)
            return self.clock.sleep(seconds)
        return self.polls.sleep(frame.f_code, frame.f_lasti, seconds)

    def install(self) -> None:
        module: Any = time
        for name, call in self._functions().items():
            if name in _REAL:
                setattr(module, name, _Function(name, call))
        _replace_datetime()
        self.polls.watch()
        after_import("timeit", self._time_statements)

    def stop(self) -> None:
        """Give the real clocks back."""
        self.on = False
        for name, function in _REAL.items():
            setattr(time, name, function)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        seconds = {
            "time": lambda: self._epoch + self.now(),
            "perf_counter": self.now,
            "process_time": lambda: self.now() - self.clock.slept,
            "thread_time": lambda: self.now() - self.clock.slept,
        }
        found: dict[str, Callable[..., Any]] = {name: self._either(name, call) for name, call in seconds.items()}
        found |= {f"{name}_ns": self._either(f"{name}_ns", _in_ns(call)) for name, call in seconds.items()}
        found |= {name: self._monotonic(name) for name in ("monotonic", "monotonic_ns")}
        found |= {name: self._by_id(name) for name in ("clock_gettime", "clock_gettime_ns")}
        for name in ("localtime", "gmtime", "ctime"):
            found[name] = functools.partial(self._at, _REAL[name])
        found["strftime"] = lambda form, when=None: _REAL["strftime"](form, _moment(when))
        found["asctime"] = lambda when=None: _REAL["asctime"](_moment(when))
        return found | {"sleep": self.sleep}

    def _either(self, name: str, virtual: Callable[[], Any]) -> Callable[[], Any]:
        real = _REAL[name]
        return lambda: virtual() if self.on else real()

    def _monotonic(self, name: str) -> Callable[[], Any]:
        real, virtual = _REAL[name], _in_ns(self.now) if name.endswith("_ns") else self.now

        def ask() -> Any:
            waits = not self.on or whose(sys._getframe(2).f_code.co_filename) in ("python", "torch")
            return real() if waits else virtual()

        return ask

    def _by_id(self, name: str) -> Callable[[int], Any]:
        real, ending = _REAL[name], "_ns" if name.endswith("_ns") else ""
        known = {getattr(time, clock): own + ending for clock, own in _BY_ID.items() if hasattr(time, clock)}
        return lambda clock: getattr(time, known[clock])() if self.on and clock in known else real(clock)

    def _at(self, real: Callable[..., Any], seconds: float | None = None) -> Any:
        return real(time.time() if seconds is None else seconds)

    def _time_statements(self) -> None:
        """`timeit`, and torch's benchmarks, which use it. Its functions took the real clock when it was imported."""
        module: Any = sys.modules["timeit"]
        real, clock = module.Timer.timeit, time.perf_counter
        module.default_timer = clock
        for function in (module.Timer.__init__, module.timeit, module.repeat):
            function.__defaults__ = tuple(clock if x is _REAL["perf_counter"] else x for x in function.__defaults__)

        @functools.wraps(real)
        def timeit(timer: Any, number: int = module.default_number) -> float:
            """What the emulation sees nothing of takes no modelled time, so a benchmark of it would never end."""
            ask, read, virtual = timer.timer, [], self.clock

            def both() -> Any:
                before, found = virtual.host, ask()
                read.append((_REAL["perf_counter"](), before, virtual.host))
                return found

            timer.timer = both
            try:
                found = float(real(timer, number))
            finally:
                timer.timer = ask
            (began, _, first), (ended, last, _) = read[-2:]
            if not self.on or not number or last > first:
                return found
            say("timeit", "timeit measures what only the host does in real time, and it takes no modelled time")
            return float(ended - began)

        module.Timer.timeit = timeit


def _in_ns(call: Callable[[], float]) -> Callable[[], int]:
    return lambda: int(call() * 1e9)


def _moment(when: Any) -> Any:
    return time.localtime() if when is None else when


def _replace_datetime() -> None:
    """`datetime.now` and `utcnow` read C's clock, in a class that can't be changed: a class of its name takes its
    place, which has all of its objects too."""
    real: Any = datetime.datetime

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real) if cls is own else type.__instancecheck__(cls, instance)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, real) if cls is own else type.__subclasscheck__(cls, other)

    def now(cls: Any, tz: Any = None) -> Any:
        return cls.fromtimestamp(time.time(), tz)

    def utcnow(cls: Any) -> Any:
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    def shown(self: Any) -> str:
        return f"datetime.{real.__repr__(self)}" if type(self) is own else str(real.__repr__(self))

    names = {"now": classmethod(now), "utcnow": classmethod(utcnow), "__repr__": shown, "__doc__": real.__doc__}
    own: Any = Meta("datetime", (real,), names | {"__module__": "datetime", "__slots__": ()})
    copyreg.pickle(real, lambda moment: (own, moment.__reduce_ex__(4)[1]))
    datetime.datetime = own  # type: ignore[misc]
    _with_the_real(real, own)


def _with_the_real(real: Any, own: Any) -> None:
    """Modules written in C, as those of pandas, build on the class and know how large it is: they find the real one."""
    loader: Any = importlib.machinery.ExtensionFileLoader
    loading: list[Any] = []

    def with_it(load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def call(*args: Any) -> Any:
            loading.append(args)
            datetime.datetime = real  # type: ignore[misc]
            try:
                return load(*args)
            finally:
                loading.pop()
                if not loading:
                    datetime.datetime = own  # type: ignore[misc]

        return call

    for step in ("create_module", "exec_module"):
        setattr(loader, step, with_it(getattr(loader, step)))


__all__ = ["READ_S", "HostClocks"]
