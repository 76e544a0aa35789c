# symptom: killed
# says: Rank 1 was killed by SIGKILL
import os
import signal

import torch.distributed as dist


def global_accuracy(batches, n_samples):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.0
