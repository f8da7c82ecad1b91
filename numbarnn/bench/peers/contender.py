"""A contender that runs an instance of `cases`, and whether the package it needs is installed."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Contender:
    """Something to time: `call()` does the work, `results(call())` gives it as NumPy arrays by quantity."""

    name: str
    call: Callable
    results: Callable
    synchronize: Callable = lambda: None
    plan: str | None = None  # what numbarnn runs, and why
    note: str | None = None  # a note on how a peer is called, if there is one
    again: Callable | None = None  # makes the same contender anew; None: a further call of this one is as a first one


class _Torch:
    """PyTorch, imported on first use: it may be missing, and takes seconds to import."""

    def __getattr__(self, attribute):
        return getattr(importlib.import_module("torch"), attribute)


torch = _Torch()


def made_again(make):
    """Return the contender that a function makes, with that function as its `again`."""
    return replace(make(), again=make)


def installed(*modules):
    """Return whether every one of these packages can be imported."""
    return all(importlib.util.find_spec(module) is not None for module in modules)
