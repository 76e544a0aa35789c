"""What a failed launch says, apart from real launches."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from course_utils.failure import fold, where

LIBRARY = sysconfig.get_paths()["purelib"]
TRACEBACK = f'''Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    train()
  File "/home/me/train.py", line 2, in train
    dist.all_reduce(t)
  File "{LIBRARY}/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^
  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
    work.wait()
RuntimeError: connection closed
  by a peer'''


def test_frames_of_libraries_are_folded_and_everything_else_stays():
    shown = fold(TRACEBACK).splitlines()
    assert shown == [*TRACEBACK.splitlines()[:5], "  ... 2 frames of libraries ...", "RuntimeError: connection closed", "  by a peer"]


def test_a_chained_exception_keeps_both_parts():
    both = TRACEBACK + "\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK
    shown = fold(both)
    assert shown.count("2 frames of libraries") == 2 and "During handling" in shown and shown.count("train()") == 2


def test_a_traceback_without_own_lines_is_left_whole():
    only = "\n".join([TRACEBACK.splitlines()[0], *TRACEBACK.splitlines()[5:]])
    assert fold(only) == only


def test_the_sentence_names_the_wrapper_when_ddp_waits(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nmodel(x)\n")
    dump = f'''Current thread 0x00007f (most recent call first):
  File "{LIBRARY}/torch/distributed/distributed_c10d.py", line 1 in _broadcast_coalesced
  File "{LIBRARY}/torch/nn/parallel/distributed.py", line 5 in forward
  File "{LIBRARY}/torch/nn/modules/module.py", line 5 in _call_impl
  File "{script}", line 2 in <module>
  File "/somewhere/course_utils/engines/child.py", line 9 in _run_main
'''
    assert where(dump, 1) == "rank 1 waits in DDP's forward: `model(x)`, line 2 of train.py"
