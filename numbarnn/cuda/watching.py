"""Looking on while a kernel runs in the simulator: who loads and stores what blocks exchange, and when.

    with watching.watched(MyWatcher()):
        ...  # launches in the simulator

Kernels know nothing of it: `ptx`, in the simulator, tells of the relaxed loads and stores by which blocks exchange
numbers.
"""

from contextlib import contextmanager


class Watcher:
    """An observer of launches, which ignores all events. Time is counted in turns: a launch's `turns` counts them from
    1, its `current` is the thread whose turn it is."""

    def launched(self, launch, function, arguments):
        """A launch begins: the `interleaving.Interleaving`, the kernel's Python function, its arguments."""

    def loaded(self, array, index, count):
        """The current thread has loaded array[index : index + count], by `ptx.load` or `ptx.load_words`."""

    def stored(self, array, index, count):
        """The current thread has stored array[index : index + count], by `ptx.store` or `ptx.store_word`."""

    def ended(self, launch):
        """The launch is over, or has failed."""


watcher = Watcher()  # that is told


@contextmanager
def watched(by):
    """Tell a Watcher what happens in the launches inside."""
    global watcher
    before, watcher = watcher, by
    try:
        yield by
    finally:
        watcher = before
