"""numbarnn at one pass of an instance: inference, forward in training, and the gradients of x or of weights alone."""

from numbarnn.bench.cases.passes import FORWARD_TRAINING, TRAINING, WHOLE, needed
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import Contender


def numbarnn_pass(instance, what, device="cpu", schedule="auto"):
    """A contender at one of `passes`.

    A backward pass apart goes back again and again from one forward's tape, which it retains. It gives the gradients of
    the initial state along with those of x.
    """
    if what in WHOLE:
        return peers.numbarnn_contender(instance, what == TRAINING, device, schedule)
    layer = peers.make_layer(instance.case, device, instance.parameters, schedule)
    x, dy = peers.to_engine(layer, instance, instance.x), peers.to_engine(layer, instance, instance.dy)
    state, need = peers.to_engine_state(layer, instance.h0, instance.c0), needed(what)

    if what == FORWARD_TRAINING:

        def call():
            return layer.forward(x, state)

        def results(returned):
            return peers.numbarnn_outputs(layer, instance, *returned[:2])

    else:
        tape = layer.forward(x, state)[2]

        def call():
            return layer.backward(tape, dy, need=need, retain=True)

        def results(gradients):
            found = {"dx": peers.from_engine(layer, instance, gradients.x)} if "x" in need else {}
            found |= peers.named_states(layer, instance.case, ("dhx", "dcx"), gradients.state) if "x" in need else {}
            params = gradients.params if "weights" in need else {}
            return found | {name: peers.to_host(layer, value) for name, value in params.items()}

    synchronize = getattr(layer.engine, "synchronize", None) or (lambda: None)
    plan = layer.explain(tuple(x.shape)).splitlines()[1]  # the schedule and its reason
    return Contender(f"numbarnn {schedule}", call, results, synchronize, plan)
