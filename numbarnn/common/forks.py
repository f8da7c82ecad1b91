"""Make locks safe in forked processes, where the thread that holds a lock may not exist."""

import os


def freed_in_forks(lock):
    """Free the lock in forked processes, and return it. It is for data that may be incomplete there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as the standard library does with its own
    return lock


def waited_for_by_forks(lock):
    """Make forks wait for the lock, so that its data are never incomplete in a child, and return it.
    A thread that holds the lock must not wait for the one that forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
