"""A sentence of help for errors of ranks that newcomers meet first: what it means here, and what to do instead."""

from __future__ import annotations

import os
import re
import tomllib
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType

from ..show.notebook import ipython_shell
from .frames import is_cell

# What everybody calls these, for a cell that uses one and doesn't import it.
_IMPORTS = {
    "torch": "import torch",
    "dist": "import torch.distributed as dist",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
    "mp": "import torch.multiprocessing as mp",
    "DDP": "from torch.nn.parallel import DistributedDataParallel as DDP",
    "DistributedDataParallel": "from torch.nn.parallel import DistributedDataParallel",
    "DataLoader": "from torch.utils.data import DataLoader",
    "DistributedSampler": "from torch.utils.data import DistributedSampler",
    "fully_shard": "from torch.distributed.fsdp import fully_shard",
    "np": "import numpy as np",
    "plt": "import matplotlib.pyplot as plt",
    "os": "import os",
    "time": "import time",
    "report": "from course_utils.rank import report",
    "device": "from course_utils.rank import device",
}
# What pip calls packages that training programs import: the same, or a name of its own.
_PIP = {
    name: name
    for name in (
        "accelerate albumentations bitsandbytes datasets deepspeed diffusers einops fairscale gymnasium huggingface_hub"
        " imageio jax lightning lmdb mlflow monai nltk omegaconf pandas peft psutil pytorch_lightning"
        " pytest requests safetensors scipy seaborn sentencepiece spacy tensorboard tensorboardX tiktoken timm"
        " tokenizers torchaudio torchmetrics torchvision tqdm transformers trl wandb webdataset xgboost"
    ).split()
} | {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "hydra": "hydra-core",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorflow": "tensorflow-cpu",
    "torch_geometric": "torch-geometric",
    "yaml": "pyyaml",
}
_SEPARATE = "Ranks are programs of their own: they don't see the notebook's variables"


@cache
def _known() -> list[dict[str, str]]:
    """The rows of `advice.toml`."""
    rows: list[dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))[
        "advice"
    ]
    return rows


# A collective whose result a program keeps: without async_op there is none.
_KEPT = re.compile(r"[=(,/*+-] *(?:torch\.distributed|dist)\.(all_reduce|broadcast|reduce|barrier)\((?!.*async_op)")


# What the collectives of objects call to turn one into bytes.
_PICKLED_TO_SEND = re.compile(r"File .*distributed_c10d\.py\", line \d+, in _object_to_tensor")


def hint(kind: str, message: str, program: str = "", traceback: str = "") -> str:
    """What a newcomer may want to know about an exception of type `kind` in a program, with its traceback; empty where
    we have nothing to add."""
    if _PICKLED_TO_SEND.search(traceback):
        return (
            "Collectives of objects send what pickle makes of them, and it can't pickle lambdas, functions in"
            " functions, generators or open files. Send plain values: numbers, strings, lists, dictionaries, tensors."
        )
    if kind in ("TypeError", "AttributeError") and "NoneType" in message and (kept := _KEPT.search(program)):
        return (
            f"dist.{kept[1]}(x) changes x itself and returns None: call it on a line of its own, and use x after that."
        )
    if kind == "NameError" and (named := re.search(r"name '(\w+)' is not defined", message)):
        return _about_name(named[1])
    for row in _known():
        if re.fullmatch(row["of"], kind) and re.search(row["message"], message, re.S):
            return row["help"]
    if kind == "ModuleNotFoundError" and (named := re.search(r"No module named '([\w.]+)'$", message)):
        return _about_module(named[1], traceback)
    return ""


def why_not(error: Exception) -> str:
    """Where a program isn't valid Python, why, and what to do: ", line 3: !ls (invalid syntax). ..." """
    line, text = getattr(error, "lineno", None), (getattr(error, "text", None) or "").strip()
    cure = about_line(text)
    return f"{f', line {line}: {text}' if line else ''} ({getattr(error, 'msg', error)}){f'. {cure}' if cure else ''}"


def about_line(line: str) -> str:
    """What to do about a line that a notebook understands and a program doesn't; empty for any other."""
    command = re.match(r"(?:[\w, ]+= *)?(?:! *(?!=)|%(?=[a-z]))(.+)", line)
    if re.match(r"[!%] *(uv +)?(pip3?|conda|mamba|python3? -m pip) +install", line):
        return f"Run `{line}` in a cell of its own, without %%ranks: the next launch finds what it installs"
    if re.match(r"%matplotlib\b", line):
        return "Leave that line out: on ranks, plt.show() shows its figure under the cell"
    if line.startswith("%%"):
        return (
            "A cell takes one magic, in its first line. Leave this one out; for times, `report(step_s=...)` on a rank"
        )
    if command and "!" in line[: command.start(1)]:
        return (
            "`!` is the notebook's, and a cell of ranks is plain Python: give that line a cell of its own, or write"
            f" `import subprocess`, and `subprocess.run({command[1]!r}, shell=True)`"
        )
    if command:
        return "`%` is the notebook's, and a cell of ranks is plain Python: give that line a cell of its own"
    if re.fullmatch(r"\?{0,2}[\w.]+\?{1,2}", line) and "?" in line:
        return "`?` is the notebook's, and a cell of ranks is plain Python: give that line a cell of its own"
    return ""


def _about_module(name: str, traceback: str) -> str:
    top = name.partition(".")[0]
    if top in _PIP:
        return f"Install it: run `%pip install {_PIP[top]}` in a cell of its own, and then this cell again."
    script = re.search(r'File "(.+?)", line \d+', traceback)
    if "." in name or script is None:  # a package that's there, without this part
        return ""
    folder = os.path.dirname(script[1])
    if not is_cell(script[1]):
        return (
            f"Python looked in the script's folder, {folder} (with -m, where you started it), and among the installed"
            " packages. A module of yours belongs there."
        )
    looked = f"Ranks looked for {name}.py in {folder}, where cells are saved, and among the installed packages"
    here = os.getcwd()
    found = PathFinder.find_spec(name, [here])
    if found is not None:
        return (
            f"{looked}, but not next to the notebook, in {here}, where yours is. Begin the cell with `import sys`, and"
            f" `sys.path.append({here!r})`."
        )
    return (
        f"{looked}. Save a cell there with `%%ranks --file {name}.py --no-launch`. For a module in another folder,"
        ' begin this cell with `import sys`, and `sys.path.append("FOLDER")`.'
    )


def _about_name(name: str) -> str:
    shell = ipython_shell()
    if shell is None or name not in shell.user_ns:
        return f"Begin the cell with `{_IMPORTS[name]}`." if name in _IMPORTS else ""
    value = shell.user_ns[name]
    if isinstance(value, ModuleType):
        return _imported(name, f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}"))
    if isinstance(value, (type, FunctionType)):
        kind = "class" if isinstance(value, type) else "function"
        if value.__module__ != "__main__":
            return _imported(name, f"from {value.__module__} import {name}")
        return (
            f"Another cell defines the {kind} `{name}`, but this cell is a whole program: its ranks see nothing else."
            f" Define `{name}` in it. Or save the other cell with `%%ranks --file mine.py --no-launch`, and begin this"
            f" one with `from mine import {name}`."
        )
    if isinstance(value, (bool, int, float, str)):
        return (
            f"{_SEPARATE}, and `{name}` is one of those. Hand it over: write `-- --{name.replace('_', '-')} {{{name}}}`"
            " at the end of the first line, and read it with argparse."
        )
    return f"{_SEPARATE}, and `{name}` is one of those. Define it, or import it, in this cell."


def _imported(name: str, line: str) -> str:
    return f"The notebook has imported `{name}`, but ranks are programs of their own. Begin the cell with `{line}`."
