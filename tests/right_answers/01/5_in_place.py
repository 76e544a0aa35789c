import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, warm: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x)) * warm
        norm = h.norm()
        return self.leave(torch.where(norm > 3, h * (3 / norm), h))


def train(batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Train a new `Net` on each batch once, in turn. Returns the loss of every step."""
    model = Net()
    model.compile(fullgraph=True, dynamic=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step, (x, y) in enumerate(batches):
        loss = cross_entropy(model(x, torch.tensor(min(1.0, (step + 1) / 10))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
