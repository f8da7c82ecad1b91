"""How far a long loop is, in one line that is written over."""

import time


def progress(steps, what="step"):
    """Yield from a sequence, and show how many of its elements are done and the seconds that took.

    Args:
        steps: a sequence, or anything else with a length.
        what: what an element is called.
    """
    start, shown = time.perf_counter(), 0.0
    for number, one in enumerate(steps):
        now = time.perf_counter()
        if not number or now - shown > 0.2:
            print(f"\r{what} {number + 1} of {len(steps)}, {now - start:.1f} s", end="", flush=True)
            shown = now
        yield one
    print(f"\r{what} {len(steps)} of {len(steps)}, {time.perf_counter() - start:.1f} s")
