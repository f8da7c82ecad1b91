"""Locks in a process that is forked while another thread holds them: that thread is not there to release them."""

import os


def freed_in_forks(lock):
    """The lock, which is free in a forked process: of what is as good half done, such as a count."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as the standard library does with its own
    return lock


def waited_for_by_forks(lock):
    """The lock, which who forks waits for, so that what it guards is done. Who holds it must not wait for who forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock
