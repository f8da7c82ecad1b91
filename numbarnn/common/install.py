"""Find out what is not installed, and the command that installs it."""

import json
import re
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def command(extra):
    """Return the pip command that installs an extra, from the clone's folder or from where pip got the package.

    Args:
        extra: one of [project.optional-dependencies] in pyproject.toml.
    """
    if _is_clone(_ROOT):
        return f'pip install -e "{"." if Path.cwd() == _ROOT else _ROOT}[{extra}]"'
    address = _address()
    return f'pip install "numbarnn[{extra}] @ {address}"' if address else f'pip install "numbarnn[{extra}]"'


def compiler_lacks():
    """Return the message that Numba's CUDA compiler is not installed, or None if it is."""
    if find_spec("numba") and find_spec("numba_cuda"):
        return None
    return f"numba-cuda, the compiler of kernels, is not installed: {command('cuda12')}"


def for_gpus():
    """Return the `command` for a GPU's packages."""
    return f"{command('cuda12')} (or [cuda13], whichever your driver supports)"


def simulator_lacks():
    """Return the message that the simulator lacks a package, or None if it lacks none."""
    return None if find_spec("greenlet") else f"greenlet is not installed: {command('sim')}"


@cache  # asking takes 3 ms
def unsuitable(names, package="numbarnn"):
    """Return a message about an installed package that is too old or too new for another one, or None.

    Args:
        names: a tuple of packages that `package` requires. Packages that are not installed are ignored.
    """
    try:
        required = metadata.requires(package) or ()
    except metadata.PackageNotFoundError:  # a folder on sys.path
        return None
    for line in required:
        if "extra ==" in line and '"kernels"' not in line:
            continue
        name, bounds = re.match(r"([\w.-]+)(?:\[.*?\])?\s*\(?([^;)]*)", line).groups()
        for relation, bound in re.findall(r"(>=|<=|<|>)\s*([\d.]+)", bounds) if name in names else ():
            try:
                found = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
            here, there = _numbers(found), _numbers(bound)
            if not {">=": here >= there, "<=": here <= there, "<": here < there, ">": here > there}[relation]:
                age = "old" if ">" in relation else "new"
                return f'{name} {found} is too {age} for {package}: pip install "{name}{bounds.strip()}"'
    return None


def _numbers(version):
    return [int(number) for number in re.match(r"\d+(\.\d+)*", version).group().split(".")]


def _is_clone(root):
    try:
        return 'name = "numbarnn"' in (root / "pyproject.toml").read_text(encoding="utf-8")
    except OSError:
        return False


def _address():
    """Return where pip got the package (PEP 610): a folder, file or repository, or None for an index."""
    try:
        text = metadata.distribution("numbarnn").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if text is None:
        return None
    origin = json.loads(text)
    return f"{origin['vcs_info']['vcs']}+{origin['url']}" if "vcs_info" in origin else origin["url"]
