"""What Numba's disk cache has to be told: it notices changes in the file of the function that was compiled, not in
files whose code became part of it."""

import hashlib
import inspect


def contains(*modules):
    """A decorator for compiled functions with `cache=True`: what is on disk is stale when one of these modules, of
    which the function contains code, has changed since."""
    digest = hashlib.sha256("".join(map(inspect.getsource, modules)).encode()).hexdigest()

    def told(dispatcher):
        file = dispatcher._cache._cache_file
        file._source_stamp = (file._source_stamp, digest)
        return dispatcher

    return told
