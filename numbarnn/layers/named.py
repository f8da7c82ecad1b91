"""A layer's parameters by the names of the cell's equations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from numbarnn.cells.layout import as_text


class Named(Mapping[str, Any]):
    """Map names of the equations to views of parameters: `named["R.f"]` (H, H), `named["peep"]` (H,).

    With several layers or directions, names have a prefix: "l0.R.f", "l1.reverse.R.f". "l0." is always allowed. Write
    into a view, or assign to a name, to set a parameter.

    Args:
        space: the `WeightSpace`. flat: the buffer.
        write: function (view, value, what to call it) that copies a value in; None: nothing can be assigned.
    """

    def __init__(self, space, flat, write=None):
        self._write, self._flat = write, flat
        self._take(space)

    def _take(self, space):
        self._blocks, self._several = space.blocks, len(space.sizes) > 1
        blocks = ((_key(name, *at), block) for at, named in self._blocks.items() for name, block in named.items())
        self._views = {key: self._view(*block) for key, block in blocks}

    def _view(self, part, where, shape):
        return self._flat[..., where].reshape((*self._flat.shape[:-1], *shape))

    def _full(self, name):
        """Return the name with its prefix."""
        if name in self:
            return name if name in self._views else f"l0.{name}"
        known = [one for one in self if one.endswith(f".{name}")]
        cure = f"name a layer, {', '.join(known)}" if known else f"there are {', '.join(self)}"
        raise KeyError(f"no parameter is called {name!r}: {cure}")

    def __getitem__(self, name: str) -> Any:
        return self._views[self._full(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        if self._write is None:
            raise TypeError(f"gradients cannot be assigned by name: write into the view, [{name!r}][...] = ...")
        self._write(self[name], value, f"named[{name!r}]")

    def __contains__(self, name: object) -> bool:
        return name in self._views or (not self._several and f"l0.{name}" in self._views)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views) if self._several else (name.removeprefix("l0.") for name in self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self):
        return "\n".join(f"{name} {as_text(self[name].shape)}" for name in self)

    def p(self, layer: int = 0, reverse: bool = False, *, columns: bool = True) -> SimpleNamespace:
        """Return one layer's parameters as the equations' `p`, to call `cell.function(x, h, layer.named.p())`.

        Args:
            layer: number of the layer.
            reverse: take the second direction.
            columns: x is (I, B) and states are (H, B), one sequence per column. False: one sequence, x (I,), states
                (H,).

        Returns:
            an object with one attribute per name. Parameters per unit are (H, 1), without `columns` (H,).
        """
        if (layer, int(reverse)) not in self._blocks:
            known = sorted({one for one, direction in self._blocks if direction == int(reverse)})
            of = "with reverse=True " if reverse else ""
            raise ValueError(f"layer {of}must be one of {known or 'none, as there is one direction'}, got {layer}")
        p = _Parameters()
        for name in self._blocks[layer, int(reverse)]:
            *groups, last = name.split(".")
            place, view = p, self._views[_key(name, layer, reverse)]
            for group in groups:
                if not hasattr(place, group):
                    setattr(place, group, _Parameters())
                place = getattr(place, group)
            setattr(place, last, view[:, None] if view.ndim == 1 and columns else view)
        return p


class _Parameters(SimpleNamespace):
    """The equations' p, or a group of it such as p.R."""

    def __getattr__(self, name):  # of what is not there
        raise AttributeError(
            f"p has no {name!r}, only {', '.join(vars(self))}: parameters that no new state depends on are left out"
        )


def _key(name, layer, direction):
    return f"l{layer}.{'reverse.' if direction else ''}{name}"
