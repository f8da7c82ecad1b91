"""A stack of layers of which each is called by itself, one after the other: what one call of all of them saves."""


class Chain:
    """Layers in a row, with the methods of a layer that contenders call. States are lists, an array per layer."""

    def __init__(self, layers):
        self.layers, self.engine = layers, layers[0].engine

    def explain(self, shape):
        first = self.layers[0].explain(shape).splitlines()[1]  # the schedule and its reason
        return f"a chain of {len(self.layers)} layers, of which the first is\n{first}"

    def __call__(self, x, state=None, **options):
        finals = []
        for layer, own in zip(self.layers, self._apart(state), strict=True):
            x, final = layer(x, own, **options)
            finals.append(final)
        return x, together(finals)

    def forward(self, x, state=None, **options):
        finals, tapes = [], []
        for layer, own in zip(self.layers, self._apart(state), strict=True):
            x, final, tape = layer.forward(x, own, **options)
            finals.append(final)
            tapes.append(tape)
        return x, together(finals), tapes

    def backward(self, tapes, dy):
        found = []
        for layer, tape in zip(self.layers[::-1], tapes[::-1], strict=True):
            found.append(layer.backward(tape, dy))
            dy = found[-1].x
        return ChainGradients(found[::-1])

    def _apart(self, state):
        """Each layer's part of (L, B, H), or of a pair of such."""
        for k in range(len(self.layers)):
            if state is None or not isinstance(state, tuple):
                yield None if state is None else state[k : k + 1]
            else:
                yield tuple(part[k : k + 1] for part in state)


class ChainGradients:
    """The gradients of each layer, together."""

    def __init__(self, found):
        self._found, self.x = found, found[0].x

    @property
    def state(self):
        return together([one.state for one in self._found])

    @property
    def params(self):
        return {
            name.replace("_l0", f"_l{k}"): value
            for k, one in enumerate(self._found)
            for name, value in one.params.items()
        }


def together(states):
    """States of layers, h or (h, c), as lists: of all h, or a pair of lists."""
    return tuple(map(list, zip(*states, strict=True))) if isinstance(states[0], tuple) else states
