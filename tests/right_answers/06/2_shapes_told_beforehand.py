import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Part(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{i}": layer for i, layer in enumerate(layers)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


class Trainer:
    def __init__(self, part: Part, micro_batches: int, lr: float) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.optimizer = torch.optim.SGD(part.parameters(), lr=lr, momentum=0.9)
        stage = PipelineStage(part, self.rank, self.world, torch.device("cpu"), group=dist.group.WORLD)
        self.schedule = Schedule1F1B(stage, micro_batches, loss_fn=self.loss)
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.criterion(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        parts: list[Tensor] = []
        match self.rank:
            case 0:
                self.schedule.step(tokens)
            case last if last == self.world - 1:
                self.schedule.step(target=targets, losses=parts)
            case _:
                self.schedule.step()
        self.optimizer.step()
        self.optimizer.zero_grad()
        told = torch.tensor([float(sum(parts)) / max(len(parts), 1)], dtype=torch.float64)
        dist.broadcast(told, src=self.world - 1)  # for everybody's log
        return told.item()


def train(make_layer, counts, batches, micro_batches, lr):
    rank = dist.get_rank()
    before = sum(n for stage, n in enumerate(counts) if stage < rank)
    part = Part([make_layer(before + i) for i in range(counts[rank])])
    trainer = Trainer(part, micro_batches, lr)
    return part, [trainer.step(tokens, targets) for tokens, targets in batches]
