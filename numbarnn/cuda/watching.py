"""Looking on while a kernel runs in the simulator: who loads and stores what blocks exchange, and when.

    with watching.watched(MyWatcher()):
        ...  # launches in the simulator

Kernels know nothing of it: it is `ptx`, in the simulator, that tells of the relaxed loads and stores by which blocks
exchange numbers.
"""

from contextlib import contextmanager

watcher = None  # the Watcher that is told; None: nobody


class Watcher:
    """What is told. Here nothing comes of it.

    A turn is the unit of time: a launch's `turns` counts them from 1, its `current` is the thread whose turn it is.
    """

    def launched(self, launch, function, arguments):
        """A launch begins: the `interleaving.Interleaving`, the kernel's Python function, its arguments."""

    def loaded(self, array, index, count):
        """The current thread has loaded array[index : index + count], by `ptx.load` or `ptx.load_words`."""

    def stored(self, array, index, count):
        """The current thread has stored array[index : index + count], by `ptx.store` or `ptx.store_word`."""

    def ended(self, launch):
        """The launch is over, or has failed."""


@contextmanager
def watched(by):
    """Tell a Watcher what happens in the launches inside."""
    global watcher
    before, watcher = watcher, by
    try:
        yield by
    finally:
        watcher = before


@contextmanager
def of_launch(launch, function, arguments):
    """For the simulator, around a launch: the Watcher is told of its beginning and its end."""
    by = watcher or Watcher()
    by.launched(launch, function, arguments)
    try:
        yield
    finally:
        by.ended(launch)
