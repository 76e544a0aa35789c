# symptom: missing
# says: no function `load_state`
from torch import Tensor, nn


def bare_of(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.DataParallel) else model


def bare_state(model: nn.Module) -> dict[str, Tensor]:
    return bare_of(model).state_dict()


def load(model: nn.Module, state: dict[str, Tensor]) -> None:
    bare = bare_of(model)
    if set(state) != set(bare.state_dict()):
        state = {name.removeprefix("module."): value for name, value in state.items()}
    bare.load_state_dict(state)
