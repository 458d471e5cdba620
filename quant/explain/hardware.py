"""Where a server will run: the compute capability that SGLang's defaults turn on."""

from dataclasses import dataclass

from equipoise.evals.errors import UsageError
from equipoise.quant.gpus import GPUS, Gpu

__all__ = ["HARDWARE", "Hardware", "find_hardware", "hardware_of_gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """``sm`` is 10 x the CUDA compute capability; 0 is the CPU server of this project."""

    name: str
    sm: int
    gpu: Gpu | None

    @property
    def is_cpu(self) -> bool:
        return self.sm == 0

    @property
    def is_hopper(self) -> bool:
        """SM90 with CUDA 12.3 or newer, which SGLang's wheels need anyway."""
        return self.sm == 90

    @property
    def is_sm100(self) -> bool:
        """B200 and its kin (SM100, SM103): SGLang's ``get_platform().is_sm100``."""
        return 100 <= self.sm < 110


_SM = {"H100": 90, "H20": 90, "H200": 90, "B200": 100, "GB200": 100, "B300": 103}

HARDWARE: dict[str, Hardware] = {
    **{name: Hardware(name=name, sm=sm, gpu=GPUS[name]) for name, sm in _SM.items()},
    "cpu": Hardware(name="cpu", sm=0, gpu=None),
}


def find_hardware(name: str) -> Hardware:
    """By name, in any case.

    Raises
    ------
    UsageError
        Not one whose defaults are known here.
    """
    for known, hardware in HARDWARE.items():
        if known.lower() == name.lower():
            return hardware
    raise UsageError(f"no rules for the hardware {name!r}; choose one of {', '.join(HARDWARE)}")


def hardware_of_gpu(driver_name: str) -> Hardware | None:
    """From the name that ``nvidia-smi`` prints ("NVIDIA H200"); None for another GPU."""
    words = driver_name.upper().replace("-", " ").split()
    return next((h for name, h in HARDWARE.items() if name.upper() in words), None)
