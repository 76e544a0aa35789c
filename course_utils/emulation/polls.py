"""Sleeping, and asking again and again.

A program that sleeps is at once where it would be then. If it sleeps to ask something of the real world again, such as
whether a process has ended or another rank's file is there, then the real world needs its time.
"""

from __future__ import annotations

import concurrent.futures
import dis
import functools
import glob
import multiprocessing.connection
import multiprocessing.pool
import multiprocessing.process
import multiprocessing.queues
import multiprocessing.synchronize
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from types import CodeType
from typing import TYPE_CHECKING, Any

from .remarks import whose
from .state import Gpus
from .streams import ASKED_S

if TYPE_CHECKING:
    from .host_clocks import HostClocks

LONGEST_S = 10.0  # that one sleep lasts in real time, while it waits for an answer
STEP_S = 0.002  # after which it looks whether the answer has changed
NAP_S = 1e-4  # of a sleep that waits for nothing that we know: others may do something meanwhile
LOOP_S = 0.02  # of a sleep in a loop that does nothing else: it may wait for something that we don't know
_sleep, _clock = time.sleep, time.monotonic  # the real ones
_QUESTIONS: tuple[tuple[Any, str], ...] = (
    (os.path, "exists isfile isdir lexists getsize getmtime"),
    (os, "listdir"),
    (glob, "glob"),
    (pathlib.Path, "exists is_file is_dir stat"),
    (subprocess.Popen, "poll"),
    (multiprocessing.process.BaseProcess, "is_alive exitcode"),
    (multiprocessing.pool.AsyncResult, "ready"),
    (multiprocessing.queues.Queue, "get_nowait empty qsize"),
    (multiprocessing.connection.Connection, "poll"),
    (threading.Thread, "is_alive"),
    (threading.Event, "is_set"),
    (multiprocessing.synchronize.Event, "is_set"),
    (queue.Queue, "get_nowait empty qsize"),
    (concurrent.futures.Future, "done"),
)
_Question = tuple[Any, tuple[Any, ...], tuple[Any, ...]]  # a function, and its arguments


def in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


@functools.cache
def _in_a_loop(code: CodeType, at: int) -> bool:
    """Whether an instruction is run again in the same call of its function."""
    jumps = (i for i in dis.get_instructions(code) if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs)
    return any(isinstance(i.argval, int) and i.argval <= at <= i.offset for i in jumps)


def _answer(question: _Question) -> Any:
    call, args, kwargs = question
    try:
        return call(*args, **dict(kwargs))
    except Exception as error:
        return type(error)


class Polls:
    """The sleeps of a program's main thread.

    A sleep is part of a poll if it comes again from the same place, nothing was emulated since the one before, and what
    the program has asked last of the real world it had also asked before that one. It ends in real time when the answer
    changes, and counts in full, as on a real machine: a poll takes as many sleeps as it would there. The first sleep of
    a poll is known as such only by the second, so what it hasn't lasted is made up for then.
    """

    def __init__(self, gpus: Gpus, clocks: HostClocks):
        self.clocks, self.clock, self.device = clocks, gpus.clock, gpus.device
        self.asked: deque[tuple[_Question, Any]] = deque(maxlen=64)  # since the last sleep, with the answers
        self.before: list[_Question] = []  # what was asked before that
        self.place: tuple[CodeType, int] | None = None
        self.until, self.owed = 0.0, 0.0

    def sleep(self, code: CodeType, at: int, seconds: float) -> None:
        """A sleep by this instruction of the program."""
        since = self.clock.host - self.until
        again = self.place == (code, at) and since < self.device.host_s
        polled = [(question, answer) for question, answer in self.asked if question in self.before]
        if not again or polled[-1:] != list(self.asked)[-1:]:  # what was asked last decided that it goes on
            polled = []
        self.place, self.before = (code, at), [question for question, _ in self.asked]
        self.asked.clear()
        if polled:
            made_up = self.owed and self._changed(polled, self.owed)
            self.owed = 0.0
            if not made_up:
                self._changed(polled, seconds)
                self.clock.sleep(seconds)
        else:
            self.owed = seconds
            self.clock.sleep(seconds)
            idle = again and since < ASKED_S and _in_a_loop(code, at)
            _sleep(min(seconds, LOOP_S if idle else NAP_S))
        self.until = self.clock.host

    def _changed(self, polled: list[tuple[_Question, Any]], seconds: float) -> bool:
        """Wait for as many real seconds, but only until an answer isn't what it was. Returns whether one changed."""
        until = _clock() + min(seconds, LONGEST_S)
        while all(_answer(question) == answer for question, answer in polled):
            left = until - _clock()
            if left <= 0:
                return False
            _sleep(min(left, STEP_S))
        return True

    def watch(self) -> None:
        """Note what the program asks of the real world."""
        questions = list(_QUESTIONS)
        from torch import distributed as dist

        if dist.is_available():
            questions.append((dist.Store, "check num_keys"))
        for owner, names in questions:
            for name in names.split():
                real = vars(owner).get(name) or getattr(owner, name)
                if isinstance(real, property):
                    setattr(owner, name, property(self._noted(owner, real.fget)))
                else:
                    again = owner.empty if name == "get_nowait" else None
                    setattr(owner, name, self._noted(owner, real, again))

    def _noted(self, owner: Any, real: Any, again: Any = None) -> Any:
        """A function that notes who asks it. What can't be asked `again` names what can, once it has failed."""

        @functools.wraps(real)
        def ask(*args: Any, **kwargs: Any) -> Any:
            if not self.clocks.on or whose(sys._getframe(1).f_code.co_filename) != "program" or not in_main_thread():
                return real(*args, **kwargs)
            question = (again or real, args, tuple(kwargs.items()))
            try:
                found = real(*args, **kwargs)
            except Exception as error:
                self.asked.append((question, _answer(question) if again else type(error)))
                raise
            if not again:
                self.asked.append((question, found))
            return found

        if not isinstance(owner, type):
            ask.__module__ = owner.__name__  # where pickle finds it
        return ask
