# symptom: name inside
# says: stopped in your code
from torch import Tensor, nn


def bare_of(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.DataParallel) else model


def bare_state(model: nn.Module) -> dict[str, Tensor]:
    return bare_of(model).state_dict()


def load_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    bare = bare_of(model)
    state = {name.replace("module.", ""): value for name, value in state.items()}
    bare.load_state_dict(state)
