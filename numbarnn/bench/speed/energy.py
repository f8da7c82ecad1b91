"""How much energy a call takes, by the counters of the driver or the processor; absent where there are none.

A counter tells joules since some moment, of a whole board or package: with the power that it takes when idle, and with
what others do on it at the time. A contender's calls are made again and again for a while, so that a counter that
moves in steps moves by many.
"""

import math
import time
from pathlib import Path
from typing import NamedTuple

from numbarnn.bench.speed import timing
from numbarnn.cuda import driver

SECONDS = {"cpu": 0.3, "cuda": 1.0}  # of calls; NVML's counter moves every 20 to 100 ms, RAPL's every millisecond
POWERCAP = Path("/sys/class/powercap")


class Zone(NamedTuple):
    """A counter of RAPL: its name, its file, and where it begins again, in microjoules."""

    name: str
    file: Path
    range: int


class Rapl:
    """The processor's counters: of all its packages and, where they are apart, of its memory."""

    def __init__(self, zones):
        self._zones = zones
        names = ", ".join(zone.name for zone in zones)
        self.about = f"RAPL's counters of {names}: with idle power, and whatever else runs there"

    def read(self):
        return [int(zone.file.read_text()) for zone in self._zones]

    def joules(self, before, after):
        """Of two readings, less than a turn of a counter apart (a minute or more at the highest power)."""
        zones = zip(self._zones, before, after, strict=True)
        return sum((end - begin) % zone.range for zone, begin, end in zones) * 1e-6


class Nvml:
    """The counter of a GPU's board: of the module cuda.bindings.nvml, and its handle of the device."""

    about = "NVML's counter of the board: with idle power"

    def __init__(self, nvml, device):
        self._nvml, self._device = nvml, device

    def read(self):
        return self._nvml.device_get_total_energy_consumption(self._device)  # millijoules

    def joules(self, before, after):
        return (after - before) * 1e-3


def counter(device):
    """(the counter of a device, "cpu" or "cuda"; None), or (None, why there is none, as words)."""
    return nvml_counter() if device == "cuda" else rapl_counter()


def rapl_counter(folder=None):
    """As `counter`; folder: of Linux' power capping framework, whose zones are folders with `name`, `energy_uj`, ..."""
    folder, zones = folder or POWERCAP, []
    if not folder.is_dir():
        return None, f"there is no {folder} (Linux has it, on processors with RAPL)"
    for zone in sorted(folder.glob("intel-rapl:*")):  # the name of AMD's processors, too
        try:
            name = (zone / "name").read_text().strip()
            if name.startswith("package") or name == "dram":  # "core" and "uncore" are parts of a package
                found = Zone(name, zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()) + 1)
                int(found.file.read_text())
                zones.append(found)
        except PermissionError:
            return None, f"{zone}/energy_uj may not be read: let an administrator allow it"
        except (OSError, ValueError) as error:
            return None, f"{zone} cannot be read: {error}"
    return (Rapl(zones), None) if zones else (None, f"{folder} has no counter of a package")


def nvml_counter():
    """As `counter`, of CuPy's current device."""
    try:
        from cuda.bindings import nvml
    except ImportError as error:
        return None, f"cuda-bindings has no NVML ({error}): pip install -U cuda-bindings"
    try:
        runtime = driver.cupy().cuda.runtime
        place = runtime.deviceGetPCIBusId(runtime.getDevice())
        nvml.init_v2()
        found = Nvml(nvml, nvml.device_get_handle_by_pci_bus_id_v2(place))
        found.read()
    except Exception as error:  # NVML's own, those of looking for its library, and of CuPy
        return None, f"the driver does not tell: {type(error).__name__}: {error}"
    return found, None


def joules_per_call(meter, contender, call_s, device):
    """Joules of a call of a contender, which takes about `call_s`: the mean of many."""
    calls = max(1, math.ceil(SECONDS[device] / call_s))
    time.sleep(timing.GAP_S)  # the threads of others have stopped spinning
    timing.timed(contender, 1)
    before = meter.read()
    timing.timed(contender, calls)
    return meter.joules(before, meter.read()) / calls
