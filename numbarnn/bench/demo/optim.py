"""Adam with gradient clipping by global norm, on flat buffers. NumPy and CuPy alike."""


class Adam:
    """D. P. Kingma, J. Ba, "Adam: a method for stochastic optimization", 2015, arXiv 1412.6980, algorithm 1.

    Args:
        weights: flat floating-point arrays, updated in place by `step`.
        xp: the array module of the buffers, numpy or cupy.
        clip: gradients whose norm, over all buffers together, is larger are scaled down to it (R. Pascanu, T. Mikolov,
            Y. Bengio, 2013, arXiv 1211.5063, algorithm 1); None for no clipping.
    """

    def __init__(self, weights, lr, *, xp, betas=(0.9, 0.999), eps=1e-8, clip=None):
        self.weights = list(weights)
        self.lr, self.betas, self.eps, self.clip, self.xp = lr, betas, eps, clip, xp
        self.steps = 0
        self.first, self.second = ([xp.zeros_like(w) for w in self.weights] for _ in range(2))

    def step(self, gradients) -> None:
        """One update. gradients: flat arrays as the weights, scaled in place where they are clipped."""
        xp, (beta1, beta2) = self.xp, self.betas
        self.steps += 1
        if self.clip is not None:  # by min(1, clip / norm); the norm stays on the device: no synchronisation
            norm = xp.sqrt(sum((g * g).sum() for g in gradients))
            scale = xp.minimum(self.clip / (norm + 1e-6), 1.0).astype(gradients[0].dtype)
            for g in gradients:
                g *= scale
        step_size = self.lr / (1 - beta1**self.steps)
        root_scale = (1 - beta2**self.steps) ** -0.5
        for w, g, first, second in zip(self.weights, gradients, self.first, self.second, strict=True):
            first *= beta1
            first += (1 - beta1) * g
            second *= beta2
            second += (1 - beta2) * (g * g)
            w -= step_size * (first / (root_scale * xp.sqrt(second) + self.eps))
