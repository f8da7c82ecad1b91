"""Optimizers for a layer's weights and other arrays, in place: `Adam` and `SGD`.

    lstm, readout = nr.LSTM(8, 16), np.zeros(16, "float32")
    optimizer = nr.optim.Adam([lstm.weights, readout], lr=0.01, clip=1.0)
    optimizer.step([grads.weights, d_readout])  # grads of lstm.backward

Arrays are NumPy's or CuPy's, of float32 or float64, all of one module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["SGD", "Adam"]


class Optimizer:
    """The base of `Adam` and `SGD`: arrays, updated in place by `step`.

    Args:
        weights: the arrays, such as [layer.weights].
        lr: learning rate, which you may change at any time.
        clip: largest norm of all gradients together. Larger gradients are scaled down to it (R. Pascanu, T. Mikolov, Y.
            Bengio, 2013, arXiv 1211.5063, algorithm 1). None disables clipping.

    Attributes:
        steps: number of updates so far. The arguments are attributes too.
    """

    def __init__(self, weights: Sequence[Any], lr: float, clip: float | None) -> None:
        if hasattr(weights, "shape"):
            raise TypeError("weights must be a list of arrays, such as [layer.weights], not one array")
        self.weights, self.lr, self.clip, self.steps = list(weights), lr, clip, 0
        kinds = [getattr(getattr(one, "dtype", None), "name", type(one).__name__) for one in self.weights]
        if not kinds or not {*kinds} <= {"float32", "float64"}:
            raise TypeError(f"weights must be arrays of float32 or float64, got {', '.join(kinds) or 'none'}")
        if not lr >= 0:
            raise ValueError(f"lr must be a number of at least 0, got {lr!r}")
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be a positive number or None, got {clip!r}")

    @property
    def xp(self) -> Any:
        """Return the arrays' module, numpy or cupy."""
        return sys.modules[type(self.weights[0]).__module__.partition(".")[0]]

    def _zeros(self) -> list[Any]:
        return [self.xp.zeros_like(one) for one in self.weights]

    def step(self, gradients: Sequence[Any]) -> None:
        """Update the weights.

        Args:
            gradients: one array per array of weights, of the same shape. They stay unchanged.

        Raises:
            ValueError: the gradients' number or shapes differ from the weights'. Nothing was changed.
        """
        gradients = list(gradients)
        shapes, wanted = ([getattr(one, "shape", None) for one in arrays] for arrays in (gradients, self.weights))
        if shapes != wanted:
            raise ValueError(f"gradients must have the shapes of the weights, {wanted}, got {shapes}")
        self.steps += 1
        if self.clip is not None:  # the norm stays on the device, so that the host does not wait for it
            norm = self.xp.sqrt(sum((g * g).sum() for g in gradients))
            scale = self.xp.minimum(self.clip / (norm + 1e-6), 1.0).astype(gradients[0].dtype)
            gradients = [g * scale for g in gradients]
        self._update(gradients)

    def _update(self, gradients):
        raise NotImplementedError


class Adam(Optimizer):
    """Update arrays in place by Adam (D. P. Kingma, J. Ba, 2015, arXiv 1412.6980, algorithm 1).

    Args:
        weights, lr, clip: see `Optimizer`.
        betas: decay per step of the mean gradient and of the mean squared gradient.
        eps: number added to the root of the mean squared gradient.

    Attributes:
        first, second: the mean gradients and mean squared gradients, one array per array of weights.
    """

    def __init__(
        self, weights: Sequence[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, *,
        clip: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(weights, lr, clip)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers from 0 to below 1, got {betas!r}")
        self.betas, self.eps, self.first, self.second = betas, eps, self._zeros(), self._zeros()

    def _update(self, gradients):
        beta1, beta2 = self.betas
        step_size, root_scale = self.lr / (1 - beta1**self.steps), (1 - beta2**self.steps) ** -0.5
        for w, g, first, second in zip(self.weights, gradients, self.first, self.second, strict=True):
            first *= beta1
            first += (1 - beta1) * g
            second *= beta2
            second += (1 - beta2) * (g * g)
            w -= step_size * (first / (root_scale * self.xp.sqrt(second) + self.eps))


class SGD(Optimizer):
    """Stochastic gradient descent, as in PyTorch: v = momentum v + g, w -= lr v.

    Args:
        weights, lr, clip: see `Optimizer`.
        momentum: factor of v per step.

    Attributes:
        velocity: v, one array per array of weights.
    """

    def __init__(
        self, weights: Sequence[Any], lr: float = 1e-3, momentum: float = 0.0, *, clip: float | None = None
    ) -> None:
        super().__init__(weights, lr, clip)
        self.momentum, self.velocity = momentum, self._zeros()

    def _update(self, gradients):
        for w, g, v in zip(self.weights, gradients, self.velocity, strict=True):
            v *= self.momentum
            v += g
            w -= self.lr * v
