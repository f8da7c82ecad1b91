"""What this package assumes of cuDNN, asked of cuDNN itself: `numbarnn.bench.peers.cudnn.assumptions`."""

from numbarnn.bench import console
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn.assumptions import ASSUMED


def questions(asked):
    """The assumptions' names."""
    return ASSUMED


def answer(name, asked):
    """What cuDNN did, and what is assumed."""
    if (reason := cudnn.why_not()) is not None:
        raise console.CannotRun(f"cuDNN cannot be called: {reason}")
    found, (assumed, _) = ASSUMED[name].ask(), ASSUMED[name]
    source = str(cudnn.default_session())
    return {"ok": found == assumed, "found": found, "assumed": assumed, "source": source}


def told(answers):
    """Each finding."""
    found = [answer for answer in answers if "found" in answer]
    return [
        f"{one['question']}: {one['found']}" + ("" if one["found"] == one["assumed"] else f"; ASSUMED {one['assumed']}")
        for one in found
    ] + ([found[0]["source"]] if found else [])
