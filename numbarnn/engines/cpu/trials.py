"""Whether short steps are faster on several threads: found out by doing both."""

import time
from math import inf

FEW = 2  # calls alone, of EVERY, which say how long that takes now
EVERY = 64
SLOWER = 1.6  # times as long as alone: so much longer took the calls after which nothing is shared for a while
PAUSE = 12  # times as long as such a call took, so that it costs little of all the time
LATER = 1.1  # times as long at most becomes with a call what calls alone take: one may be late by chance


class Trial:
    """Runs calls of one kind alone or shared, whichever is faster at present; results are the same either way.

    Threads that meet after every few microseconds are twice as fast as one on an idle machine; beside other programs
    they take several times as long, as each waits for one that has no processor. Nothing tells beforehand.
    """

    def __init__(self, clock=time.perf_counter):
        self._clock, self._calls, self._alone, self._again = clock, 0, inf, 0.0

    def run(self, shared, alone, amount):
        """Call `shared()` or `alone()`.

        Args:
            amount: of what they do, to which their time is proportional.
        """
        begin, few = self._clock(), self._calls % EVERY < FEW
        shares = not few and begin >= self._again
        self._calls += 1
        (shared if shares else alone)()
        end = self._clock()
        took = (end - begin) / amount
        if not shares:
            self._alone = min(took, LATER * self._alone)
        elif took > SLOWER * self._alone:
            self._again = end + PAUSE * (end - begin)
