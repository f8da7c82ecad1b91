"""Packages that only some conversions need."""

from importlib import import_module

from numbarnn.common import install


def load(name, purpose):
    """The module of that name.

    Raises:
        ImportError: it is not installed; the message says how to.
    """
    try:
        return import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(f"{purpose} needs the package {package}: {install.command(package)}") from error
