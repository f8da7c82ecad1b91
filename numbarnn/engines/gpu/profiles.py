"""Device profiles for planners: a handful of numbers, so that plans need no device."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeviceProfile:
    """Numbers of a GPU that decide what a persistent kernel can hold and how long a step takes.

    Attributes:
        name: for people.
        compute_capability: (major, minor).
        multiprocessors: SMs; a persistent kernel has at most one block on each.
        shared_bytes: most dynamic shared memory that a block can have.
        registers: 32-bit registers of an SM.
        clock_ghz: of the SMs under load.
        fma_per_clock: float32 multiply-adds of an SM per clock.
        double_per_clock: float64 multiply-adds of an SM per clock.
        mma_per_clock: float16 multiply-adds of an SM's tensor cores by `mma.sync` per clock; TF32: half of it.
        l2_gb_s: bandwidth of the L2 cache, all SMs together.
        exchange_us: from the moment the last block has stored a number until others have it, microseconds.
        cooperative: whether it launches cooperative kernels.
        warps: per block of a persistent kernel, what the planner may choose.
    """

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    registers: int
    clock_ghz: float
    fma_per_clock: int
    double_per_clock: int
    mma_per_clock: int
    l2_gb_s: float
    exchange_us: float
    cooperative: bool = True
    warps: tuple[int, ...] = (8, 16)

    @property
    def tensor_cores(self):
        """Return whether the device has the `mma` instructions that kernels use (compute capability 8.0 or newer)."""
        return self.compute_capability >= (8, 0)


# Sizes from NVIDIA's data sheets and "CUDA C++ Programming Guide", table of compute capabilities. Bandwidth and
# exchange were measured on the H200 (bench/results/probe.json) and scaled by clock and SMs for the others.
KIB = 1024
PROFILES = {
    "a100": DeviceProfile(
        "NVIDIA A100", (8, 0), 108, 163 * KIB, 65536, 1.41, 64, 32, 1024, 4400.0, 1.0,
    ),
    "h100": DeviceProfile(
        "NVIDIA H100", (9, 0), 132, 227 * KIB, 65536, 1.75, 128, 64, 1300, 6500.0, 0.75,
    ),
    "h200": DeviceProfile(
        "NVIDIA H200", (9, 0), 132, 227 * KIB, 65536, 1.85, 128, 64, 1300, 7200.0, 0.7,
    ),
    "rtx4090": DeviceProfile(
        "NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * KIB, 65536, 2.52, 128, 2, 512, 5000.0, 0.7,
    ),
    "t4": DeviceProfile(
        "NVIDIA T4", (7, 5), 40, 64 * KIB, 65536, 1.59, 64, 2, 0, 1300.0, 1.0,
    ),
}  # fmt: skip
_PER_CAPABILITY = {(7, 5): "t4", (8, 0): "a100", (8, 6): "rtx4090", (8, 9): "rtx4090", (9, 0): "h200"}
UNKNOWN = "h100"  # what devices of other capabilities are taken for, but for what they say of themselves


def get(name):
    """The profile of that name; a profile is returned as it is.

    Raises:
        ValueError: there is none; says which there are.
    """
    if isinstance(name, DeviceProfile):
        return name
    if not isinstance(name, str) or name not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, not {name!r}")
    return PROFILES[name]


def of_device(attributes, name, compute_capability):
    """The profile of a device from what its driver says.

    Args:
        attributes: dict with CuPy's names: MultiProcessorCount, MaxSharedMemoryPerBlockOptin,
            MaxRegistersPerMultiprocessor, ClockRate (kHz), CooperativeLaunch.
    """
    like = PROFILES[_PER_CAPABILITY.get(compute_capability, UNKNOWN)]
    multiprocessors, clock = attributes["MultiProcessorCount"], min(like.clock_ghz, attributes["ClockRate"] / 1e6)
    return replace(
        like,
        name=name,
        compute_capability=compute_capability,
        multiprocessors=multiprocessors,
        shared_bytes=attributes["MaxSharedMemoryPerBlockOptin"],
        registers=attributes["MaxRegistersPerMultiprocessor"],
        clock_ghz=clock,
        l2_gb_s=like.l2_gb_s * multiprocessors / like.multiprocessors,
        cooperative=bool(attributes["CooperativeLaunch"]),
    )


# The simulator: small, so that several blocks and several launches come about at sizes that it can run; few threads and
# no registers for weights, as threads and exchanges between lanes are dear there.
SIMULATOR = DeviceProfile(
    "simulator", (9, 0), 8, 227 * KIB, 0, 1.0, 128, 64, 1300, 1000.0, 1.0, warps=(2,)
)  # fmt: skip
