import os
import threading
import torch
import torch.distributed.rpc as rpc
from course_utils.rank import report

class Server:
    def __init__(self):
        self.weights, self.version, self.lock = torch.zeros(1_000_000), 0, threading.Lock()

    def read(self):
        with self.lock:
            return self.version, self.weights.clone()

    def update(self):
        with self.lock:
            self.weights += 1                          # a very simple gradient
            self.version += 1

def train(server):
    for _ in range(2_000):
        server.rpc_sync().update()

def watch(server):
    for _ in range(100):
        version, weights = server.rpc_sync().read()
        report(version=version, least=weights.min(), most=weights.max())

rank = int(os.environ["RANK"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
if rank == 0:
    server = rpc.RRef(Server())
    futures = [rpc.rpc_async(f"worker{i}", task, args=(server,)) for i, task in ((1, train), (2, watch))]
    torch.futures.wait_all(futures)
rpc.shutdown()
