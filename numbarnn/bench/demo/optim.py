"""Adam with gradient clipping by global norm, on flat buffers, in place. NumPy and CuPy alike."""


class Adam:
    """D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2015, arXiv 1412.6980, algorithm 1.

    weights: list of flat floating-point arrays, updated in place by `step`. clip: gradients whose norm, over all
    buffers together, is larger are scaled down to it (R. Pascanu, T. Mikolov, Y. Bengio, 2013, arXiv 1211.5063,
    algorithm 1); None for no clipping. xp: the array module of the buffers, numpy or cupy.
    """

    def __init__(self, weights, lr, *, xp, betas=(0.9, 0.999), eps=1e-8, clip=None):
        self.weights = list(weights)
        self.lr, self.betas, self.eps, self.clip, self.xp = lr, betas, eps, clip, xp
        self.steps = 0
        self.first = [xp.zeros_like(w) for w in self.weights]
        self.second = [xp.zeros_like(w) for w in self.weights]
        self._scratch = [xp.empty_like(w) for w in self.weights]

    def step(self, gradients) -> None:
        """One update. gradients: flat arrays as the weights; as working memory, they come back changed."""
        self.steps += 1
        if self.clip is not None:
            self._clip(gradients)
        for buffers in zip(self.weights, gradients, self.first, self.second, self._scratch, strict=True):
            self._update(*buffers)

    def _clip(self, gradients) -> None:
        """Scale by min(1, clip / norm). The norm stays on the device: no synchronisation."""
        xp, squares = self.xp, 0.0
        for g, scratch in zip(gradients, self._scratch, strict=True):
            xp.multiply(g, g, out=scratch)
            squares = squares + scratch.sum()
        scale = xp.minimum(self.clip / (xp.sqrt(squares) + 1e-6), 1.0).astype(gradients[0].dtype)
        for g in gradients:
            xp.multiply(g, scale, out=g)

    def _update(self, w, g, first, second, scratch) -> None:
        xp, (beta1, beta2) = self.xp, self.betas
        step_size = self.lr / (1 - beta1**self.steps)
        root_scale = (1 - beta2**self.steps) ** -0.5
        # first = beta1 first + (1 - beta1) g
        xp.multiply(first, beta1, out=first)
        xp.multiply(g, 1 - beta1, out=scratch)
        xp.add(first, scratch, out=first)
        # second = beta2 second + (1 - beta2) g^2
        xp.multiply(second, beta2, out=second)
        xp.multiply(g, g, out=g)
        xp.multiply(g, 1 - beta2, out=g)
        xp.add(second, g, out=second)
        # w = w - step_size first / (root_scale sqrt(second) + eps)
        xp.sqrt(second, out=scratch)
        xp.multiply(scratch, root_scale, out=scratch)
        xp.add(scratch, self.eps, out=scratch)
        xp.divide(first, scratch, out=scratch)
        xp.multiply(scratch, step_size, out=scratch)
        xp.subtract(w, scratch, out=w)
