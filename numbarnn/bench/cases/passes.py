"""What a row of `numbarnn bench` times of a layer, by its name in records."""

from typing import NamedTuple

FORWARD, TRAINING = "forward", "forward+backward"
FORWARD_TRAINING, BACKWARD = "forward in training", "backward"
BACKWARD_DATA, BACKWARD_WEIGHTS = "backward data", "backward weights"
STEP = "one step"

WHOLE = (FORWARD, TRAINING)  # what a usual case has rows of
APART = (FORWARD, FORWARD_TRAINING, BACKWARD_DATA, BACKWARD_WEIGHTS, BACKWARD)
SHORT = {
    FORWARD: "fwd", TRAINING: "fwd+bwd", FORWARD_TRAINING: "fwd train", BACKWARD_DATA: "bwd data",
    BACKWARD_WEIGHTS: "bwd weights", BACKWARD: "bwd", STEP: "step",
}  # fmt: skip
#: The products of a pass, as multiples of those of forward. The weights' gradients alone need the way back, too.
PRODUCTS = {FORWARD: 1, TRAINING: 3, FORWARD_TRAINING: 1, BACKWARD_DATA: 1, BACKWARD_WEIGHTS: 2, BACKWARD: 2, STEP: 1}
OUTPUTS, INPUTS = ("y", "hy", "cy"), ("dx", "dhx", "dcx")


class Semantics(NamedTuple):
    """What a set times: "linear" or "skip" input, and the passes."""

    input_mode: str
    passes: tuple


USUAL = Semantics("linear", WHOLE)


def needed(what):
    """The gradients that a pass computes, as `Recurrent.backward` has them in `need`."""
    found = {BACKWARD_DATA: ("x",), BACKWARD_WEIGHTS: ("weights",)}
    return found.get(what, ("x", "weights") if what in (TRAINING, BACKWARD) else ())


def quantities(what, parameters):
    """The names of what a pass computes; parameters: names of those."""
    need = needed(what)
    found = OUTPUTS if what in (*WHOLE, FORWARD_TRAINING) else ()
    return {*found, *(INPUTS if "x" in need else ()), *(parameters if "weights" in need else ())}
