"""What the links of this machine's GPUs should give, as the driver tells: NVLink and PCIe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...machine.here import Gpu
from ...show.units import counted

# Bytes a second of one lane, one way, by generation, after the encoding of the bits (PCI-SIG).
PCIE_LANE_BPS = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


@dataclass(frozen=True)
class GpuLink:
    """What connects two GPUs, or a GPU and the host: `Bps` is what it carries one way."""

    words: str
    Bps: float
    direct: bool = True  # False: between two GPUs by way of the host's memory


def to_host(gpus: Sequence[Gpu]) -> list[GpuLink | None]:
    """The PCIe link of each GPU; None if the driver doesn't say."""
    with _Driver() as nvml:
        return [_pcie(nvml, g) for g in gpus] if nvml else [None] * len(gpus)


def between(gpus: Sequence[Gpu], a: int, b: int) -> GpuLink | None:
    """The link between GPUs `a` and `b` of the list: all NVLinks that lead from one to the other, or to a switch, or
    else PCIe. None if the driver doesn't say."""
    with _Driver() as nvml:
        if not nvml:
            return None
        try:
            first, second = (nvml.nvmlDeviceGetHandleByUUID(gpus[i].uuid) for i in (a, b))
            p2p = nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_READ) == nvml.NVML_P2P_STATUS_OK
        except Exception:  # a MIG slice, or a driver that doesn't know
            return None
        if nvlink := _nvlink(nvml, first, second):
            return nvlink
        ends = [_pcie(nvml, gpus[i]) for i in (a, b)]
        slower = min((end for end in ends if end), key=lambda end: end.Bps, default=None)
        if slower is None:
            return None
        return GpuLink(f"{slower.words}, {'direct' if p2p else 'by way of the host'}", slower.Bps, p2p)


def _nvlink(nvml: Any, first: Any, second: Any) -> GpuLink | None:
    count = 0
    there = nvml.nvmlDeviceGetPciInfo(second).busId
    for i in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(first, i):
                continue
            switch = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(first, i) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            count += switch or nvml.nvmlDeviceGetNvLinkRemotePciInfo(first, i).busId == there
        except nvml.NVMLError:  # it has no link of this number, or none at all
            continue
    if not count:
        return None
    (speed,) = nvml.nvmlDeviceGetFieldValues(first, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
    return GpuLink(f"{counted(count, 'NVLink')}", count * speed.value.uiVal * 1e6)


def _pcie(nvml: Any, gpu: Gpu) -> GpuLink | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        # not the current ones: an idle GPU goes down to generation 1
        generation, lanes = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle), nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    except Exception:
        return None
    return GpuLink(f"PCIe {generation} x{lanes}", PCIE_LANE_BPS.get(generation, PCIE_LANE_BPS[6]) * lanes)


class _Driver:
    """NVML while the block runs; None if there's none."""

    def __enter__(self) -> Any:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:
            self.nvml = None
        else:
            self.nvml = pynvml
        return self.nvml

    def __exit__(self, *error: object) -> None:
        if self.nvml is not None:
            self.nvml.nvmlShutdown()
