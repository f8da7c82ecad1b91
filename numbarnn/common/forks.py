"""Locks in a process that is forked while another thread holds them: the child has no such thread to release them."""

import os


def freed_in_forks(lock):
    """Return the lock after making it free in forked processes: for data that may be left half done there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as the standard library does with its own
    return lock


def waited_for_by_forks(lock):
    """Return the lock after making forks wait for it, so that its data are never half done in a child.
    A thread that holds it must not wait for the one that forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
