"""OpenMP's threads sleep soon while other programs want the processors.

A thread of libgomp's that has nothing to do, or has to wait for the others of its region, looks again some 300,000
times, which takes milliseconds, before it sleeps. On processors that are its own that is the fastest way. Beside other
programs it uses up the turns on a processor which the work itself needs: then each region, PyTorch's or ours, takes
until the scheduler has given its turn to a thread that others spin for. A step of an optimizer took 58 ms beside two
busy processes, .4 on one thread.

libgomp knows of that: where it has more threads than there are processors they look but a hundred or a thousand times
(GOMP_SPINCOUNT in its manual). So while the thread that calls us has to wait for a processor, a Python thread of ours
has a team of its own, which sleeps: there are as many threads then. What is set for the program stays as it is.
"""

import ctypes
import threading
from time import monotonic

WINDOW = 0.05  # seconds of which it is asked how much of them a thread has waited for a processor
SHARE = 0.1  # of these from which threads sleep soon. On idle processors it is .02 at most, beside one busy process .5
LASTS = 1.0  # seconds for which they do from then on
_WAITED = "/proc/thread-self/schedstat"  # nanoseconds on a processor, then nanoseconds of waiting for one
_BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def seconds_waited():
    """For how long the calling thread has had work but no processor, in all; None where the system does not tell."""
    try:
        with open(_WAITED, "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class _OfThread(threading.local):
    """What is known of a Python thread's last window.

    Attributes:
        end: of the window, seconds of a clock; 0 before the first one. begin, waited: its begin, `seconds_waited` then.
    """

    begin = end = waited = 0.0


class OpenMPWaits:
    """Watches whether threads that call have to wait for a processor, and lets OpenMP's sleep soon while they do.

    Args:
        functions: of `openmp.functions_of_pytorch`.
        size: f(), of how many threads a region of the calling Python thread is.
    """

    def __init__(self, functions, size):
        self._size, self._processors = size, functions["omp_get_num_procs"]
        self._begin = _BEGIN(ctypes.cast(functions["GOMP_parallel"], ctypes.c_void_p).value)  # gives Python's lock up
        self._nothing = ctypes.cast(functions["omp_get_num_procs"], ctypes.c_void_p)  # for a region to do
        self._own, self._thread, self._until, self._ended = _OfThread(), None, 0.0, threading.Event()

    @property
    def short(self):
        """Whether OpenMP's threads sleep soon now."""
        return self._thread is not None and self._thread.is_alive()

    def look(self):
        """Look at the calling thread; of most calls that is a glance at the clock."""
        own, now = self._own, monotonic()
        if now < own.end:
            return
        waited = seconds_waited()
        if waited is None:
            own.end = float("inf")
            return
        if own.end and waited - own.waited > SHARE * (now - own.begin):
            self._shorten(now + LASTS)
        own.begin, own.end, own.waited = now, now + WINDOW, waited

    def end(self):
        """Let threads wait as before, at once."""
        if self.short:
            self._ended.set()
            self._thread.join()
        self._thread = None

    def _shorten(self, until):
        """Let threads sleep soon until then."""
        self._until, size = until, self._size()
        team = max(2, self._processors() - size + 2)  # with those of PyTorch's one more than processors
        if self.short or team > size + 2:  # for so many more threads it has too few to take others' turns
            return
        self._ended.clear()
        self._thread = threading.Thread(target=self._keep, args=(team,), name="numbarnn-openmp", daemon=True)
        self._thread.start()

    def _keep(self, team):
        """What the Python thread does that has the team, which ends with it."""
        self._begin(self._nothing, None, team, 0)
        while (left := self._until - monotonic()) > 0 and not self._ended.wait(left):
            pass
