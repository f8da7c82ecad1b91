"""How the package is imported and installed: beside its own clone, and by the commands that messages give."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from numbarnn.common import install

ROOT = Path(install.__file__).resolve().parents[2]
EXTRAS = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text().split("optional-dependencies]")[1], re.M)


@pytest.fixture
def a_clone():
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("these tests belong to a clone")


def test_versions_takes_the_lower_bounds_of_all_that_is_needed(a_clone):
    path = ROOT / "tests" / "versions.py"
    versions = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("versions", path))
    spec.loader.exec_module(versions)
    core, of_kernels = (list(map(versions.oldest, versions.requirements(extra))) for extra in ("core", "kernels"))
    assert core == ["numpy==2.0.*", "llvmlite==0.44.*", "scipy-openblas32==0.3.29", "greenlet==3"]
    assert of_kernels == [*core, "numba==0.61.*", "numba-cuda[cu12]==0.21.*"]


@pytest.mark.parametrize(
    ("numpy", "problem"),
    [("1.26.4", "numpy 1.26.4 is too old for it"), ("2.6.0rc1", "numpy 2.6.0rc1 is too new for it"), ("2.5.1", None)],
)
def test_a_package_that_is_too_old_or_too_new_is_named_with_the_cure(monkeypatch, numpy, problem):
    required = ["numpy<2.6,>=2.0", 'numpy>=2.7; extra == "bfloat16"', 'absent>=1; extra == "kernels"', "other"]
    monkeypatch.setattr(metadata, "requires", {"it": required}.__getitem__)
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: numpy if name == "numpy" else real(name))
    install.unsuitable.cache_clear()
    cure = problem and f'{problem}: pip install "numpy<2.6,>=2.0"'
    assert install.unsuitable(("numpy", "absent"), "it") == cure
    install.unsuitable.cache_clear()


def test_a_driver_that_is_too_old_is_told_with_the_packages_for_it(monkeypatch):
    from numbarnn import engines

    class CUDARuntimeError(RuntimeError):
        pass

    def count():
        raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=count, driverGetVersion=lambda: 12020,
        runtimeGetVersion=lambda: 13000,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    monkeypatch.setattr(install, "find_spec", lambda name: name)
    monkeypatch.setattr(engines, "simulated", lambda: False)
    problem = engines._gpu_problem.__wrapped__()
    assert "driver is for CUDA 12.2" in problem and "packages are for CUDA 13.0" in problem
    assert install.command("cuda12") in problem


# -------------------------------------------------------------------------------------- an editable install
@pytest.fixture
def editable(a_clone, tmp_path):
    """What an editable install puts into site-packages, made as pip makes it: a folder."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path / "clones" / "numbarnn"
    folder.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "numbarnn"):
        (folder / name).symlink_to(ROOT / name)
    program = f"from setuptools import build_meta; print(build_meta.build_editable({str(tmp_path)!r}))"
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    site = tmp_path / "site-packages"
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    return folder, site


def test_an_editable_install_is_a_path(editable):
    """setuptools' other form, a module with an import hook, comes after namespace packages."""
    folder, site = editable
    (pth,) = site.glob("*.pth")
    assert pth.read_text().strip() == str(folder) and not list(site.glob("*.py"))


def test_a_script_beside_the_clone_imports_the_package(editable):
    folder, site = editable
    script = folder.parent / "script.py"
    script.write_text(f"import site; site.addsitedir({str(site)!r})\nimport numbarnn; print(numbarnn.LSTM)\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-S", "script.py"]  # without the paths of this machine's own editable install
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    ran = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "<class 'numbarnn.layers.models.LSTM'>", ran.stderr


def test_the_emulated_gpu_leaves_no_package_among_temporary_files(tmp_path):
    """Scripts in the system's folder for them would import it in place of numbarnn."""
    pytest.importorskip("ml_dtypes")
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests' / 'fakes')!r})\n"
        "import emulator; emulator.install()\n"
        "from numbarnn.common import code_cache; code_cache.write('key', {}, b'kernel')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NUMBARNN_CACHE_DIR"}
    subprocess.run(
        [sys.executable, "-c", program], env=environment | {"TMPDIR": str(tmp_path)}, check=True, timeout=120
    )
    (folder,) = tmp_path.iterdir()
    assert list(folder.rglob("key.cubin")) and not folder.name.isidentifier()


# -------------------------------------------------------------------------------------- commands in messages
def test_in_a_clone_the_folder_is_named(a_clone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert install.command("sim") == f'pip install -e "{ROOT}[sim]"'
    monkeypatch.chdir(ROOT)
    assert install.command("sim") == 'pip install -e ".[sim]"'


@pytest.mark.parametrize(
    "direct_url, command",
    [
        (None, 'pip install "numbarnn[onnx]"'),
        (
            {"url": "file:///home/me/numbarnn", "dir_info": {}},
            'pip install "numbarnn[onnx] @ file:///home/me/numbarnn"',
        ),
        (
            {"url": "https://example.org/numbarnn", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            'pip install "numbarnn[onnx] @ git+https://example.org/numbarnn"',
        ),
    ],
)
def test_elsewhere_the_address_is_that_of_the_package(direct_url, command, tmp_path, monkeypatch):
    class Distribution:
        """What pip wrote when it installed the package."""

        def read_text(self, name):
            return json.dumps(direct_url) if direct_url and name == "direct_url.json" else None

    monkeypatch.setattr(install, "_ROOT", tmp_path)
    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    assert install.command("onnx") == command
    assert install.for_gpus().startswith(command.replace("onnx", "cuda12"))


def test_every_command_names_an_extra_that_exists(a_clone):
    """And none is written out by hand, as that works for packages on an index only."""
    named = set()
    for path in (ROOT / "numbarnn").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"install\.command\([\"'](\w+)[\"']\)", text))
        named |= set(re.findall(r"MissingPackage\(.*, \"(\w+)\"\)", text))
        assert path.name == "install.py" or not re.search(r"pip install [^\n]*numbarnn\[", text), path
    assert {"sim", "bfloat16", "torch", "cli"} <= named <= set(EXTRAS)
