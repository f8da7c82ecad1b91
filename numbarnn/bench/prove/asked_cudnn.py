"""What this package assumes of cuDNN, asked of cuDNN itself: `numbarnn.bench.peers.cudnn.experiments`."""

from numbarnn.bench import report
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn.assumptions import ASSUMED
from numbarnn.bench.peers.cudnn.experiments import EXPERIMENTS


def questions(asked):
    """The assumptions' names."""
    return ASSUMED


def answer(name, asked):
    """What cuDNN did, and what is assumed."""
    if (reason := cudnn.why_not()) is not None:
        raise report.CannotRun(f"cuDNN cannot be called: {reason}")
    found = EXPERIMENTS[name]()
    return {"ok": found == ASSUMED[name], "found": found, "assumed": ASSUMED[name],
            "source": str(cudnn.default_session())}  # fmt: skip


def told(answers):
    """Each finding."""
    found = [answer for answer in answers if "found" in answer]
    return [
        f"{one['question']}: {one['found']}" + ("" if one["found"] == one["assumed"] else f"; ASSUMED {one['assumed']}")
        for one in found
    ] + ([found[0]["source"]] if found else [])
