"""Contenders: what `numbarnn bench` times."""

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
    note: str | None = None  # how a peer is called
    again: Callable | None = None  # makes the contender anew; None: every call takes as much memory as the first


class _Torch:
    """PyTorch, imported on first use: it may be missing, and takes seconds to import."""

    def __getattr__(self, attribute):
        return getattr(importlib.import_module("torch"), attribute)


torch = _Torch()


def made_again(make):
    """Call a function that makes a contender, and keep the function as its `again`."""
    return replace(make(), again=make)


def installed(*modules):
    return all(importlib.util.find_spec(module) is not None for module in modules)
