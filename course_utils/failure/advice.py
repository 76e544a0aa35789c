"""A sentence of help for errors of ranks that newcomers meet first: what it means here, and what to do instead."""

from __future__ import annotations

import os
import re
from importlib.machinery import PathFinder
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

# The type of an exception (a pattern), what its message holds (a pattern), and the sentence.
_HINTS: tuple[tuple[str, str, str], ...] = (
    (
        "EOFError",
        "EOF when reading a line",
        "A rank has no keyboard, so input() can't work. Pass the value after --, as in `%%ranks 2 -- --epochs 3`, and"
        " read it with argparse.",
    ),
    (
        "ValueError|RuntimeError",
        r"Default process group has not been initialized",
        "Call dist.init_process_group() before the first collective, and before DistributedDataParallel. `%%ranks` sets"
        " all the variables that it needs.",
    ),
    (
        "ValueError|RuntimeError",
        r"trying to initialize the default process group twice",
        "A program calls dist.init_process_group() once. If a function of yours may be called twice, ask"
        " dist.is_initialized() first.",
    ),
    (
        "ValueError|RuntimeError",
        r"nccl2? requires at least one CUDA device|ProcessGroupNCCL is only supported with GPUs|No backend type"
        r" associated with device type cpu",
        "NCCL only connects GPUs. Call dist.init_process_group() without a backend: then tensors on GPUs go over NCCL,"
        " and those in main memory over gloo.",
    ),
    (
        "RuntimeError|DistNetworkError|OSError",
        r"EADDRINUSE|[Aa]ddress already in use|port .* (is )?in use",
        "Another program, or an earlier run of this one, holds that port. `%%ranks` gives every launch a free one in"
        " MASTER_PORT: leave out MASTER_ADDR, MASTER_PORT and init_method, and rank and world_size with them.",
    ),
    (
        "RuntimeError|AssertionError|AcceleratorError",
        r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available|invalid device ordinal",
        "This rank has no such GPU. `from course_utils.rank import device` and `.to(device())` takes the rank's own"
        " GPU, or the CPU where there is none.",
    ),
    (
        "RuntimeError",
        r"before the\s+current process has finished its bootstrapping phase",
        "A worker process runs this script again from the top. Put what starts workers under `if __name__ =="
        ' "__main__":`.',
    ),
    (
        "RuntimeError",
        r"Expected to have finished reduction in the prior iteration",
        "DDP waits for a gradient that never came: in the step before, some parameters had no part in the loss. Use"
        " them all, or pass find_unused_parameters=True.",
    ),
    (
        "RuntimeError",
        r"Expected all tensors to be on the same device",
        "The model and its data lie on different devices. Move both: `from course_utils.rank import device`, then"
        " `.to(device())`.",
    ),
    (
        "AttributeError",
        r"'(DistributedDataParallel|FullyShardedDataParallel)' object has no attribute",
        "The wrapper holds your model in its attribute `module`: write `model.module.` and the name, here and in all"
        " places that want the model itself.",
    ),
    (
        "RuntimeError",
        r"loading state_dict for (?!Distributed).*Unexpected key\(s\) in state_dict: \"module\.",
        "Keys that begin with `module.` are those of a model in DDP. Save `model.module.state_dict()`, which any model"
        " can load.",
    ),
    (
        "RuntimeError",
        r"loading state_dict for DistributedDataParallel.*Missing key\(s\) in state_dict: \"module\.",
        "These are the keys of the plain model: load them with `model.module.load_state_dict(...)`, or before you wrap"
        " the model in DDP.",
    ),
    (
        "ValueError",
        r"sampler option is mutually exclusive with shuffle",
        "DistributedSampler shuffles already: leave shuffle=True out of the DataLoader, and call"
        " sampler.set_epoch(epoch) before each epoch.",
    ),
    (
        "SystemExit",
        r"--local[-_]rank",
        "Ranks get their number in the environment, not as an argument:"
        ' `local_rank = int(os.environ["LOCAL_RANK"])`. Only the old torch.distributed.launch passed --local-rank.',
    ),
    (
        "SystemExit",
        r"error: the following arguments are required",
        "What comes after -- in the first line goes to the program: `%%ranks 2 -- --epochs 3`.",
    ),
    (
        "KeyError",
        r"'(NODE_RANK|NPROC_PER_NODE|NNODES|(SLURM|OMPI|PMI|MPI|JSM)_\w+)'",
        "Ranks have the variables of torchrun: RANK, LOCAL_RANK, GROUP_RANK (the number of the node), WORLD_SIZE,"
        " LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Other launchers set others.",
    ),
    (
        "ProcessExitedException|ProcessRaisedException",
        "",
        "Each rank already is a process: instead of mp.spawn, call the function itself on every rank. If a program does"
        ' start processes, put that under `if __name__ == "__main__":`, because each of them reads the file again.',
    ),
    (
        "RuntimeError",
        r"Cannot re-initialize CUDA in forked subprocess",
        "A worker process can't use the GPU of the rank that forked it. Let workers make tensors in main memory, and"
        " move them to the GPU in the rank itself.",
    ),
    (
        "RuntimeError",
        r"Parent directory .* does not exist",
        "If rank 0 makes the folder, the others come too early: let every rank call os.makedirs(folder, exist_ok=True),"
        " or wait in a dist.barrier() until rank 0 has.",
    ),
    (
        "OutOfMemoryError",
        r"out of memory(?! \(emulated\))",  # which says itself what would help
        "The GPU's memory is full. A smaller batch is the quickest cure; other notebooks and ranks may hold memory as"
        " well (`nvidia-smi` lists them).",
    ),
    (
        "RuntimeError|error",
        r"DataLoader worker .* (killed by signal: Bus error|is killed by signal)",
        "A loader's worker was killed. In a container that's most often a full /dev/shm: `python -m"
        " course_utils.machine.doctor` says so, num_workers=0 does without it.",
    ),
    (
        "ValueError|RuntimeError",
        r"Argument ``\w+_list`` must (NOT )?be specified on",
        "Only one rank has the list: the one that gathers, or the one that scatters. All others pass None, as in"
        " `tensors if dist.get_rank() == 0 else None`.",
    ),
    (
        "RuntimeError|ValueError",
        r"invalid output tensor list at index|Incorrect (output|input) list size|Tensor list input to scatter/gather",
        "Such a list has a tensor for each rank: `[torch.zeros_like(x) for _ in range(dist.get_world_size())]`.",
    ),
    (
        "RuntimeError|ValueError",
        r"(gather|scatter): invalid tensor size at index",
        "With gloo, all tensors in the list have the shape of the one that's sent. Pad what is shorter, and gather the"
        " lengths first.",
    ),
    (
        "TypeError",
        r"Expected parameter `\w+` of type torch.Tensor",
        "Collectives send tensors: make one on the rank's device, `x = torch.tensor(value, device=device())`, and read"
        " x.item() afterwards.",
    ),
    (
        "TypeError|AttributeError",
        r"_distributed_c10d\.Work'|'Work' object",
        "With async_op=True a collective returns a handle: call its wait(), and then use the tensor that you gave it.",
    ),
    (
        "RuntimeError",
        r"DistributedDataParallel is not needed when a module doesn't have any parameter",
        "Nothing of this model is trained, so there are no gradients to average: use it as it is, without DDP.",
    ),
    (
        "ValueError",
        r"device_ids and output_device arguments only work with",
        "Move the model to the rank's device before you wrap it, and leave device_ids out: `DDP(model.to(device()))`"
        " works on a GPU and on the CPU, with `from course_utils.rank import device`.",
    ),
    (
        "ValueError",
        r"SyncBatchNorm (layers only work with|expected input tensor to be on)",
        "SyncBatchNorm needs GPUs. On the CPU leave the model's BatchNorm as it is: convert only `if device().type =="
        ' "cuda"`.',
    ),
    (
        "AttributeError",
        r"'\w+Sampler' object has no attribute 'set_epoch'",
        "This loader has no DistributedSampler, so every rank gets all samples. Pass"
        " `sampler=DistributedSampler(dataset)` to the DataLoader, without shuffle=True.",
    ),
    (
        "AttributeError",
        r"object has no attribute 'module'$",
        'Only a model in DDP has `module`, and this one isn\'t. `getattr(model, "module", model)` is right for both.',
    ),
    (
        "UnpicklingError",
        r"Weights only load failed",
        "torch.load reads tensors and plain values, and nothing that could run code. For a file of your own,"
        " write `torch.load(path, weights_only=False)`; or keep to state_dict()s and numbers when you save.",
    ),
    (
        "FileExistsError",
        r"",
        "Another rank, or an earlier run, made it first: os.makedirs(folder, exist_ok=True) is happy with that.",
    ),
    (
        "RuntimeError",
        r"Invalid device string: 'cuda:",
        'After `cuda:` comes a number, and in an f-string, {}: f"cuda:{local_rank}", where `local_rank ='
        ' int(os.environ["LOCAL_RANK"])`.',
    ),
    (
        "TypeError|RuntimeError",
        r"argument 'index' \(position 2\) must be int, not str|`(rank|world_size)` must be an integer",
        'What comes from os.environ is text: make it a number, as in `int(os.environ["LOCAL_RANK"])`.',
    ),
    (
        "ModuleNotFoundError",
        r"named 'apex",
        "NVIDIA's Apex is built from its source, and the `apex` that pip knows is something else. What it had is in"
        " torch: torch.amp, torch.nn.parallel.DistributedDataParallel, torch.nn.SyncBatchNorm.",
    ),
    (
        "ModuleNotFoundError",
        r"named 'torch\._six'",
        "torch._six was removed in torch 2.0. For `string_classes` write `str`, for `inf` write `math.inf`.",
    ),
    (
        "TypeError",
        r"\breport\(\) takes 0 positional arguments",
        "report takes names with values: `report(loss=loss.item(), step=step)`, or `report(**values)` for a dictionary."
        " A model doesn't fit: report numbers of it, or keep it with torch.save(model.state_dict(), path).",
    ),
    (
        "PicklingError|AttributeError|TypeError",
        r"[Cc]an't (pickle|get) (local object|attribute|<function)",
        "What a worker process gets has to be pickled, and functions in functions and lambdas can't be. Define it at"
        " the top of the cell.",
    ),
)


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
    for kinds, pattern, words in _HINTS:
        if re.fullmatch(kinds, kind) and re.search(pattern, message, re.S):
            return words
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
