"""Keeps to themselves what Lightning and TensorFlow say about hardware that isn't there. Cells import it as `quiet`;
leave it out when something doesn't work."""

import logging
import sys
import types
import warnings

import torch

SILENT = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
NOTES = (
    ".*srun.* command is available",  # a Slurm is installed, and not used
    ".*LeafSpec",  # Lightning uses a name that torch renamed
    ".*does not have many workers",  # the pictures lie in memory
    ".*exists and is not empty",  # you ran the notebook before
    ".*callbacks used to create the checkpoint",
    ".*ended before the epoch ended",  # section 6 is about it
)

logging.disable(logging.INFO)
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")  # else TensorBoard imports TensorFlow, if it's here
for note in NOTES:
    warnings.filterwarnings("ignore", message=note)
torch.backends.cudnn.conv.fp32_precision = "ieee"  # on a GPU too: no TF32, so that curves can be compared


def scalars(folder, name):
    """Steps and values of a curve, as TensorBoard reads them from its files; two empty lists if there's none."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    found = events.Scalars(name) if name in events.Tags()["scalars"] else []
    return [event.step for event in found], [event.value for event in found]
