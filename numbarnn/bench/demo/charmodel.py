"""A character model around any recurrent layer: embedding, layer, linear map, softmax cross-entropy.

Array code that runs with NumPy and CuPy alike. N = T * B is the number of characters in a window, V the size
of the vocabulary, E the embedding size (the layer's input size), H the layer's hidden size. Products are the
engine's: on the CPU they run on its threads, and those of NumPy's BLAS do not get in the way.
"""

import numpy as np

PREFIX = "rnn."  # before the names of the layer's parameters in the model's state_dict


class CharModel:
    """Probabilities of the next character.

        x = embedding[number]                                     (T, B, E)
        y = layer(x)                                              (T, B, H)
        logits = y Wᵀ + b                                         (T, B, V)
        loss = mean over characters of -log softmax(logits)[target]      in nats

    Args:
        vocabulary_size: V.
        layer: an LSTM, GRU or RNN, one direction, time-major, of one size; its dtype and device are the model's.
        seed: of the embedding (standard normal, as torch.nn.Embedding) and the linear map (as torch.nn.Linear).
    """

    def __init__(self, vocabulary_size, layer, seed=0):
        self.layer, self.xp, self._multiply = layer, layer.engine.array_module, layer.engine.multiply
        self.size, self.dtype = vocabulary_size, np.dtype(layer.dtype)
        self.embedding_size, self.hidden_size = layer.input_size, layer.hidden_sizes[-1]
        shapes = {
            "embedding.weight": (self.size, self.embedding_size),
            "linear.weight": (self.size, self.hidden_size),
            "linear.bias": (self.size,),
        }
        ends = np.cumsum([np.prod(shape) for shape in shapes.values()]).tolist()
        self.weights, self.gradients = (self.xp.zeros(ends[-1], self.dtype) for _ in range(2))
        parts = (zip(shapes.items(), self.xp.split(flat, ends[:-1]), strict=True)
                 for flat in (self.weights, self.gradients))  # fmt: skip
        self.parameters, self._d = ({name: part.reshape(shape) for (name, shape), part in own} for own in parts)
        rng, bound = np.random.default_rng([seed, 1]), self.hidden_size**-0.5  # another stream than the layer's
        for name, view in self.parameters.items():
            normal = name == "embedding.weight"
            drawn = rng.standard_normal(view.shape) if normal else rng.uniform(-bound, bound, view.shape)
            view[...] = self.xp.asarray(drawn.astype(self.dtype))

    @property
    def buffers(self):
        """All parameters, as the two flat arrays that an optimizer updates."""
        return [self.layer.weights, self.weights]

    def loss_and_gradients(self, inputs, targets, state=None):
        """One training window.

        Args:
            inputs, targets: integers (T, B). state: of the layer; None for zero.

        Returns:
            The loss (0-d array, on the device); the gradients as flat arrays in the order of `buffers`, of which the
            next call reuses the second; the layer's final state.
        """
        shape, inputs, targets = inputs.shape, inputs.reshape(-1), targets.reshape(-1)
        y, state, tape = self.layer.forward(self._embed(inputs, shape), state)
        y = y.reshape(-1, self.hidden_size)
        loss, dlogits = _cross_entropy(self._logits(y), targets, self.xp)
        self._multiply(self._d["linear.weight"], dlogits, y, transpose_a=True)
        self.xp.sum(dlogits, axis=0, out=self._d["linear.bias"])
        dy = self.xp.empty_like(y)
        self._multiply(dy, dlogits, self.parameters["linear.weight"])
        grads = self.layer.backward(tape, dy.reshape(*shape, self.hidden_size))
        # The gradient of the embedding is a product with rows of the identity: deterministic on every device, where
        # adding up rows in place would need atomics, and fast for vocabularies of characters.
        one_hot = dlogits  # its memory: dlogits is used up
        one_hot.fill(0)
        one_hot[self.xp.arange(inputs.size), inputs] = 1
        dx = grads.x.reshape(-1, self.embedding_size)
        self._multiply(self._d["embedding.weight"], one_hot, dx, transpose_a=True)
        return loss, [grads.weights, self.gradients], state

    def loss(self, inputs, targets, state=None):
        """Loss of one window in inference (0-d array), and the layer's final state."""
        logits, state = self.logits(inputs, state)
        loss, _ = _cross_entropy(logits.reshape(-1, self.size), targets.reshape(-1), self.xp)
        return loss, state

    def logits(self, inputs, state=None):
        """Inference: logits (T, B, V) for integers (T, B), and the layer's final state."""
        y, state = self.layer(self._embed(inputs.reshape(-1), inputs.shape), state)
        return self._logits(y.reshape(-1, self.hidden_size)).reshape(*inputs.shape, self.size), state

    def state_dict(self):
        """NumPy copies of all parameters by name."""
        own = {name: np.array(self.layer.engine.to_host(view)) for name, view in self.parameters.items()}
        return own | {PREFIX + name: array for name, array in self.layer.state_dict().items()}

    def load_state_dict(self, arrays):
        """Sets all parameters from what `state_dict` gave."""
        self.layer.load_state_dict({n.removeprefix(PREFIX): a for n, a in arrays.items() if n.startswith(PREFIX)})
        for name, view in self.parameters.items():
            view[...] = self.xp.asarray(arrays[name])

    def _embed(self, numbers, shape):
        return self.parameters["embedding.weight"][numbers].reshape(*shape, self.embedding_size)

    def _logits(self, y):
        """(N, V) from y (N, H)."""
        logits = self.xp.empty((y.shape[0], self.size), self.dtype)
        self._multiply(logits, y, self.parameters["linear.weight"], transpose_b=True)
        logits += self.parameters["linear.bias"]
        return logits


def _cross_entropy(logits, targets, xp):
    """Mean of -log softmax(logits)[target] (0-d array), and its gradient, in the memory of logits (N, V)."""
    rows = xp.arange(logits.shape[0])
    logits -= logits.max(axis=1, keepdims=True)
    of_target = logits[rows, targets]
    xp.exp(logits, out=logits)
    sums = logits.sum(axis=1, keepdims=True)
    loss = (xp.log(sums[:, 0]) - of_target).mean()
    logits /= sums * logits.shape[0]
    logits[rows, targets] -= 1 / logits.shape[0]
    return loss, logits
