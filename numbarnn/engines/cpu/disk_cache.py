"""What Numba's disk cache has to be told.

It goes by the time and size of the file of the function that was compiled, and by the function's line there, but not by
other files whose code became part of it. Here code counts, of all these files; comments, docstrings and lines do not.
What reaches into Numba's internals is here: the file of a dispatcher's cache.
"""

import inspect
import re
import sys
from functools import cache

from numba.core.caching import IndexDataCacheFile

from numbarnn.cuda.cubin_cache import code_of


class _File(IndexDataCacheFile):
    """A file of Numba's cache; what an earlier version of this package left counts as stale."""

    def _load_index(self):
        try:
            return super()._load_index()
        except (ImportError, AttributeError):  # it names types of modules that are no more
            return {}


def contains(*modules):
    """A decorator for compiled functions with `cache=True`: what is on disk is stale when the code of the function's
    module has changed, or of one of these, of which the function contains code."""

    def told(dispatcher):
        file = dispatcher._cache._cache_file
        without_line = re.sub(r"-\d+(?=\.py\d)", "", file._index_name.removesuffix(".nbi"))
        names = dispatcher.py_func.__module__, *(module.__name__ for module in modules)
        dispatcher._cache._cache_file = _File(file._cache_path, without_line, tuple(map(code_of_module, names)))
        return dispatcher

    return told


def go_by_code(module, *others):
    """The same for all other functions of a module, which contain code of these others; before they are called."""
    for value in list(vars(module).values()):
        file = getattr(getattr(value, "_cache", None), "_cache_file", None)
        if file is not None and not isinstance(file._source_stamp[0], str):
            contains(*others)(value)


@cache
def code_of_module(name):
    """`code_of` of a module by its name, once per process."""
    return code_of(inspect.getsource(sys.modules[name]))
