"""The tape of a training call.

A tape has copies of the weights and of x, which backward reads again: changing either in between changes no gradient.
"""

from dataclasses import dataclass
from typing import Any

from numbarnn.layers.calls import BackwardCall, ForwardCall
from numbarnn.layers.prepared import PreparedForward
from numbarnn.layers.sequences import Packing


@dataclass
class Tape:
    """The state that a training forward call keeps for backward. One backward pass consumes it.

    Attributes:
        stack: the `Stack` that made it. weights, x: what it was made with, which are the caller's.
        calls: the `PlannedCalls` that made it. forward: the `ForwardCall`. backward: the backward call, once it was
            run.
        used: backward is done: the saved gates have been overwritten. packing: of a packed x, where its elements stand.
        dw: the gradients of all parameters, after a backward that makes an array for them.
        insides: the `Insides` of a call that recorded values.
        prepared: the `PreparedForward` that did forward, if one did: given back when nobody has the tape any more.
    """

    stack: Any
    weights: Any
    calls: Any
    forward: ForwardCall
    x: Any
    backward: BackwardCall | None = None
    used: bool = False
    packing: Packing | None = None
    dw: Any = None
    prepared: PreparedForward | None = None
    insides: Any = None

    def __del__(self):
        if self.prepared is not None:
            self.prepared.give_back()

    def __reduce_ex__(self, protocol):
        raise TypeError("a tape cannot be copied or pickled: it is good for one backward of the layer that made it")
