"""Memory of the GPUs that these models run on, as the driver reports it."""

from dataclasses import dataclass

from equipoise.evals.errors import UsageError

__all__ = ["GPUS", "Gpu", "find_gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU; ``memory_mib`` is the total that ``nvidia-smi`` prints, in MiB."""

    name: str
    memory_mib: int
    sm_major: int  # compute capability: 8 Ampere, 9 Hopper, 10 Blackwell
    source: str

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * 2**20


def _smi(name: str, memory_mib: int, sm_major: int, device: str) -> Gpu:
    return Gpu(
        name=name, memory_mib=memory_mib, sm_major=sm_major, source=f"memory.total of nvidia-smi, {device}"
    )


GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        _smi("A100", 81_920, 8, "NVIDIA A100-SXM4-80GB"),
        _smi("H100", 81_559, 9, "NVIDIA H100 80GB HBM3"),
        _smi("H20", 97_871, 9, "NVIDIA H20"),
        _smi("H200", 143_771, 9, "NVIDIA H200"),
        _smi("B200", 183_359, 10, "NVIDIA B200"),
        _smi("GB200", 189_471, 10, "NVIDIA GB200"),
        _smi("B300", 275_040, 10, "NVIDIA B300 SXM6 AC"),
    )
}


def find_gpu(name: str) -> Gpu:
    """A GPU by name in any case, or by its memory in MiB ("143771"), then taken for a Hopper.

    Raises
    ------
    UsageError
        Unknown; lists the known ones.
    """
    if found := GPUS.get(name.upper()):
        return found
    if name.isascii() and name.isdigit() and 0 < int(name) < 10**8:
        return Gpu(name=f"{int(name):,} MiB", memory_mib=int(name), sm_major=9, source="as given")
    raise UsageError(f"no GPU {name!r}; give one of {', '.join(GPUS)}, or its memory in MiB (of nvidia-smi)")
