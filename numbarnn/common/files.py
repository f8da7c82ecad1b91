"""Write files atomically, and check before long work that they can be written."""

import errno
import os
import shutil
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path):
    """Yield a temporary path with the same ending, which replaces `path` after the block.

    If the block or the disk fails, the former file is unchanged, and no temporary file is left.

    Raises:
        OSError: the file cannot be written; the error names `path`.
    """
    if _is_stream(Path(path)):
        final = part = Path(path)
    else:
        final = Path(os.path.realpath(path))  # what a link points to, not the link
        part = final.with_name(f"{final.stem}.{os.getpid()}.part{final.suffix}")
    try:
        _check_what_is_there(final)
        yield part
        if part != final:
            if final.exists():
                shutil.copymode(final, part)
            part.replace(final)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
    finally:
        if part != final:
            _remove(part)


def check_writable(path):
    """Raise the OSError that writing the file would raise, and change nothing."""
    try:
        with replacing(path) as part:
            if not _is_stream(part):
                part.touch()
            raise _Enough
    except _Enough:
        pass


class _Enough(Exception):
    """Raised to leave `replacing` before it replaces a file."""


def _is_stream(path):
    """Return whether a path is a stream such as /dev/stdout or a pipe, which cannot be replaced."""
    return path.exists() and (str(path.parent) in ("/dev", "/dev/fd") or not (path.is_file() or path.is_dir()))


def _check_what_is_there(path):
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):  # its folder would allow replacing it, but the file is read-only
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _remove(part):
    try:
        part.unlink(missing_ok=True)
    except NotADirectoryError:  # `path` is below a file, so nothing was written
        pass
