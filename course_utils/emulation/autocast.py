"""Mixed precision as on CUDA. Torch chooses what to cast by the device it believes in, and below us that is the CPU: so
CUDA's lists are registered in the CPU's place, and look at the tag."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from .state import block

# torch/include/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE and
# AT_FORALL_PROMOTE; an overload after a dot.
LOWER = """
conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu addmm
addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell
gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
""".split()
FLOAT32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
""".split()
PROMOTE = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
# aten/src/ATen/autocast_mode.cpp, binary_cross_entropy_banned
BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\nMany models use a sigmoid"
    " layer right before the binary cross entropy layer.\nIn this case, combine the two layers using"
    " torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss."
    " binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
)
_KEY = "AutocastCPU"
_kept: list[Any] = []  # the library, which would take its kernels with it


class _Autocast:
    """Which devices' autocast is on, and the weights that were cast already in this region."""

    def __init__(self) -> None:
        self.cuda = False
        self.cpu = False
        self.casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not tensor.dtype.is_floating_point or tensor.dtype in (dtype, torch.float64) or block(tensor) is None:
            return tensor
        keep = tensor.requires_grad and tensor.is_leaf and torch.is_autocast_cache_enabled() and dtype != torch.float32
        if keep and id(tensor) in self.casts:
            return self.casts[id(tensor)][1]
        out = tensor.to(dtype)
        if keep:
            self.casts[id(tensor)] = (tensor, out)
        return out


def install() -> None:
    """Take over CPU autocast's place, and let CUDA's switch turn it on."""
    state = _Autocast()
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lists = {"lower": LOWER, "float32": FLOAT32, "promote": PROMOTE, "banned": ["binary_cross_entropy"]}
        rules = {name: rule for rule, names in lists.items() for name in names}
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
            if name.startswith("aten::") and name[6:] not in rules:  # the CPU casts here, and CUDA doesn't
                library.impl(name[6:], torch.library.fallthrough_kernel, _KEY, allow_override=True)
        for name, rule in rules.items():
            packet, _, overload = name.partition(".")
            found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if found is not None:
                library.impl(name, _kernel(state, found, rule), _KEY, allow_override=True)
    _take_over_switches(state)


def _kernel(state: _Autocast, func: Any, rule: str) -> Any:
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def wanted(args: Any) -> torch.dtype:
        if rule == "float32":
            return torch.float32
        given = {t.dtype for t in tree_leaves(args) if isinstance(t, torch.Tensor) and block(t) is not None}
        widest = rule == "promote" and torch.float32 in given
        return torch.float32 if widest else torch.get_autocast_dtype("cuda")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            if state.cuda and rule == "banned":
                raise RuntimeError(BANNED)
            if state.cuda:
                dtype = wanted((args, kwargs))
                args, kwargs = tree_map_only(torch.Tensor, lambda t: state.cast(t, dtype), (args, kwargs))
            return func(*args, **kwargs)

    return kernel


def _take_over_switches(state: _Autocast) -> None:
    real_set, real_clear = torch.set_autocast_enabled, torch.clear_autocast_cache

    def set_enabled(*args: Any) -> None:
        device, enabled = args if len(args) == 2 else ("cuda", args[0])
        setattr(state, device if device in ("cuda", "cpu") else "cpu", bool(enabled))
        real_set("cpu", state.cuda or state.cpu)

    def is_enabled(device: str = "cuda") -> bool:
        return bool(getattr(state, device, False))

    def clear() -> None:
        state.casts.clear()
        real_clear()

    torch.set_autocast_enabled, torch.is_autocast_enabled, torch.clear_autocast_cache = set_enabled, is_enabled, clear
