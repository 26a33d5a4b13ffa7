"""What each type of GPU has and can do, as far as a config can be judged by it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuType:
    """One type of GPU: its memory, and whether it computes in FP8."""

    memory_gib: float
    fp8: bool


# By Ray's accelerator names (ray/util/accelerators/accelerators.py, 2.60) and, for cards that
# Ray names after the product, by the name it finds. Memory from the makers' data sheets; a type
# that is sold in several sizes stands with its largest, so that what does not fit never fits.
# FP8 needs Ada, Hopper or newer (NVIDIA), CDNA 3 or newer (AMD).
GPU_TYPES = {
    "K80": GpuType(12, fp8=False),
    "P4": GpuType(8, fp8=False),
    "P100": GpuType(16, fp8=False),
    "V100": GpuType(32, fp8=False),
    "T4": GpuType(16, fp8=False),
    "A10G": GpuType(24, fp8=False),
    "A100": GpuType(80, fp8=False),
    "A100-40G": GpuType(40, fp8=False),
    "A100-80G": GpuType(80, fp8=False),
    "L4": GpuType(24, fp8=True),
    "L40": GpuType(48, fp8=True),
    "L40S": GpuType(48, fp8=True),
    "H100": GpuType(94, fp8=True),
    "H200": GpuType(141, fp8=True),
    "H20": GpuType(141, fp8=True),
    "GH200": GpuType(144, fp8=True),
    "B200": GpuType(192, fp8=True),
    "B300": GpuType(288, fp8=True),
    "GB200": GpuType(192, fp8=True),
    "GB300": GpuType(288, fp8=True),
    "RTX-PRO-6000": GpuType(96, fp8=True),
    "GeForce-RTX-3090": GpuType(24, fp8=False),
    "GeForce-RTX-4090": GpuType(24, fp8=True),
    "GeForce-RTX-5090": GpuType(32, fp8=True),
    "AMD-Instinct-MI100": GpuType(32, fp8=False),
    "AMD-Instinct-MI210": GpuType(64, fp8=False),
    "AMD-Instinct-MI250X": GpuType(64, fp8=False),
    "AMD-Instinct-MI250X-MI250": GpuType(64, fp8=False),
    "AMD-Instinct-MI300A": GpuType(128, fp8=True),
    "AMD-Instinct-MI300X-OAM": GpuType(192, fp8=True),
    "AMD-Instinct-MI300X-HF": GpuType(192, fp8=True),
    "AMD-Instinct-MI308X": GpuType(192, fp8=True),
    "AMD-Instinct-MI325X-OAM": GpuType(256, fp8=True),
    "AMD-Instinct-MI350X-OAM": GpuType(288, fp8=True),
    "AMD-Instinct-MI355X-OAM": GpuType(288, fp8=True),
}
