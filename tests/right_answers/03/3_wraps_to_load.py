from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present


def bare_state(model: nn.Module) -> dict[str, Tensor]:
    if isinstance(model, nn.DataParallel):
        return bare_state(model.module)
    return dict(model.state_dict())


def load_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    wanted = model if isinstance(model, nn.DataParallel) else nn.DataParallel(model)
    state = OrderedDict(state)
    if all(name in wanted.state_dict() for name in state):  # saved from a wrapper
        consume_prefix_in_state_dict_if_present(state, "module.")
    wanted.module.load_state_dict(state)
