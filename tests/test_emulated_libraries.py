"""What libraries such as transformers, accelerate and timm take for granted of torch, in plain torch: each check is one
at which such a library failed on modelled GPUs."""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.fsdp  # noqa: F401 - names for the first test

from course_utils.launcher import launch

pytestmark = pytest.mark.xdist_group("emulated")  # one warm server for all


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Launch a program on an emulated cluster, with a module `library` that it can import."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path))

    def start(program: str, ranks: int = 1, cluster: str = "2xA100", library: str = "") -> Any:
        (tmp_path / "library.py").write_text(textwrap.dedent(library))
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        return launch(script, ranks, cluster=cluster, quiet=True, timeout=100)

    return start


LIBRARY = """
import torch
from torch import Generator

class Cached:
    graph: torch.cuda.CUDAGraph | None = None

class Graphed(torch.cuda.CUDAGraph):
    pass

class Capture(torch.cuda.graph):
    pass

def draw(generator: torch.Generator | None = None, stream: torch.cuda.Stream | torch.Stream | None = None,
         event: torch.cuda.Event | torch.Event | None = None) -> bool:
    return isinstance(generator, torch.Generator)
"""


def test_classes_stay_classes(run: Callable[..., Any], tmp_path: Path) -> None:
    """In annotations, in isinstance, and as bases: whatever is a class in torch is one on a modelled GPU."""
    names = [
        (module.__name__, name)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").partition(".")[0] in ("torch", "time", "datetime", "threading", "timeit")
        for name, found in list(vars(module).items())
        if inspect.isclass(found)
    ]
    assert ("torch.cuda", "CUDAGraph") in names and len(names) > 5000
    (tmp_path / "names.json").write_text(json.dumps(names))
    run(
        """
        import copy, inspect, json, pickle, sys, torch
        from pathlib import Path
        import library

        here = Path(__file__).parent
        gone = [(module, name) for module, name in json.loads((here / "names.json").read_text())
                if module in sys.modules and name in vars(sys.modules[module])
                and not inspect.isclass(vars(sys.modules[module])[name])]
        assert not gone, gone
        assert not isinstance(None, torch.cuda.CUDAGraph) and issubclass(library.Graphed, torch.cuda.CUDAGraph)
        for refused in (torch.cuda.CUDAGraph, library.Graphed, lambda: library.Capture(None)):
            try:
                refused()
            except RuntimeError as error:
                assert "an emulated cluster can't run CUDA graphs" in str(error)
            else:
                raise AssertionError("nobody refused")

        assert issubclass(torch.cuda.Stream, torch.Stream) and issubclass(torch.cuda.Event, torch.Event)
        assert library.draw(torch.default_generator) and library.draw(torch.Generator("cuda")) and not library.draw(3)
        class Own(torch.Generator):
            pass
        assert isinstance(Own(), torch.Generator) and not isinstance(torch.default_generator, Own)
        there = torch.Generator("cuda").manual_seed(3)
        for twin in (copy.deepcopy(there), pickle.loads(pickle.dumps(there)), there.clone_state()):
            assert twin.device.type == "cuda" and type(twin) is torch.Generator and twin.initial_seed() == 3
            assert torch.equal(torch.rand(2, generator=twin, device="cuda"),
                               torch.rand(2, generator=copy.deepcopy(there), device="cuda"))
        """,
        library=LIBRARY,
    )
