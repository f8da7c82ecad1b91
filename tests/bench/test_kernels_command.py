"""`numbarnn kernels`: its table, JSON, PTX and source, and how it fails."""

import ast
import inspect
import re
from dataclasses import replace

import pytest

from numbarnn import cli
from numbarnn.bench import planned
from numbarnn.cuda import compiler
from numbarnn.kernels import catalog
from planned_problems import shipped_kernels

EVERY = shipped_kernels((9, 0))
DECORATORS = ("cuda.jit", "cuda.jit(launch_bounds=(THREADS, 1))")
FEW = ("dropout", "add_column_sums-float32-columns", "copy-float64-contiguous_from_strided")


@pytest.fixture
def few(monkeypatch):
    """A catalog of three kernels."""
    found = [catalog.find(name, EVERY) for name in FEW]
    monkeypatch.setattr(planned, "named_kernels", lambda cc: found)
    monkeypatch.setattr(planned, "kernels_of", lambda problems, cc: found)
    return found


@pytest.fixture
def toolchain(toolchain_installed, few, tmp_path, monkeypatch):
    """The CUDA compiler, with a cache of its own."""
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "cubins"))
    monkeypatch.setattr(compiler, "_compiled", {})


@pytest.fixture
def spilling(few, monkeypatch):
    """As if the second kernel spilled, the third did not compile and the linker said nothing about a fourth."""

    def compile_(shipped, cc):
        if str(shipped) == str(few[2]):
            raise RuntimeError("linking failed")
        resources = dict(registers=48, spill_bytes=0, shared_bytes=2048, stack_bytes=0)
        compiled = compiler.CompiledKernel("k", "k", b"", cc, (), **resources)
        if shipped is few[3]:
            return replace(compiled, registers=-1, spill_bytes=-1)
        return replace(compiled, spill_bytes=24, stack_bytes=16) if shipped is few[1] else compiled

    few.append(next(shipped for shipped in EVERY if shipped.kernel.name == "copy"))
    monkeypatch.setattr(compiler, "toolchain", lambda: "a compiler")
    monkeypatch.setattr(catalog.ShippedKernel, "compile", compile_)


def test_table_and_json(toolchain, command, capsys):
    rows = command("kernels", "--arch", "sm_90", "--arch", "sm_80,sm_90")
    names = [name.split("-")[0] for name in FEW]
    assert [row["arch"] for row in rows] == ["sm_90"] * 3 + ["sm_80"] * 3
    assert [row["name"] for row in rows] == names * 2
    assert [row["dtype"] for row in rows[:3]] == ["float32", "float32", "float64"]
    assert [row["layouts"] for row in rows[:3]] == ["", "columns", "contiguous_from_strided"]
    for row in rows:
        assert set(row) == {
            "name", "dtype", "layouts", "arch", "registers", "shared_bytes", "dynamic_shared_bytes", "spill_bytes",
            "stack_bytes", "threads_per_block", "ok", "error",
        }  # fmt: skip
        assert 16 <= row["registers"] <= 255 and (row["spill_bytes"], row["stack_bytes"]) == (0, 0)
        assert row["ok"] is True and row["error"] is None
        assert row["dynamic_shared_bytes"] == 0
        assert row["shared_bytes"] == (16 * 32 * 4 if row["name"] == "add_column_sums" else 0)
    assert [row["threads_per_block"] for row in rows[:3]] == [256, 512, 128]
    said = capsys.readouterr().out
    for row in rows:
        assert row["name"] in said and str(row["registers"]) in said
    assert "6 kernels for sm_90, sm_80: no spills" in said


def test_failures_are_told_and_exit_with_1(spilling, command, capsys):
    (good, spills, broken, unknown) = command("kernels", "--arch", "sm_90", code=1)
    assert good["ok"] and spills["ok"] and not (broken["ok"] or unknown["ok"])
    assert (spills["spill_bytes"], spills["stack_bytes"], spills["registers"]) == (24, 16, 48)
    assert broken["registers"] is broken["spill_bytes"] is unknown["registers"] is unknown["spill_bytes"] is None
    said = capsys.readouterr().out
    assert "spills 24 bytes  add_column_sums  float32" in said
    assert "FAILED copy float64 contiguous_from_strided sm_90: RuntimeError: linking failed" in said
    assert "FAILED copy float32 contiguous_from_contiguous sm_90: the linker did not report" in said
    assert "4 kernels for sm_90: 2 FAILED, 1 spill registers" in said and "no spills" not in said


def test_missing_toolchain(few, monkeypatch, capsys):
    def missing():
        raise RuntimeError("the CUDA compiler was not found (nowhere); install it with pip")

    monkeypatch.setattr(compiler, "toolchain", missing)
    for argv in (["--arch", "sm_90"], ["--ptx", "dropout"], ["--sass", "dropout"]):
        assert cli.main(["kernels", *argv]) == 1
        said = capsys.readouterr()
        assert said.err == "numbarnn kernels: the CUDA compiler was not found (nowhere); install it with pip\n"
        assert said.out == ""


@pytest.mark.parametrize("argv, words", [
    (["--arch", "90"], ["sm_90", "'90'"]),
    (["--arch", "sm_90,sm_x"], ["sm_90", "'sm_x'"]),
    (["--ptx", "kopy"], ["'kopy'", "dropout, add_column_sums, copy"]),
    (["--sass", "kopy"], ["'kopy'", "dropout, add_column_sums, copy"]),
    (["--source", "lstm"], ["'lstm'", "dropout, add_column_sums, copy"]),
    (["--source", "copy", "--ptx", "copy"], ["not allowed with"]),
    (["--sass", "copy", "--ptx", "copy"], ["not allowed with"]),
    (["--json", "no/such/folder/x.json"], ["directory that exists"]),
])  # fmt: skip
def test_bad_arguments(few, argv, words, refused):
    said = refused("kernels", *argv)
    assert all(word in said for word in words)


def test_ptx(toolchain, capsys):
    assert cli.main(["kernels", "--ptx", "copy-float64-contiguous_from_strided", "--arch", "sm_80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "// copy-float64-contiguous_from_strided, sm_80"
    assert ".target sm_80" in lines and any(".entry" in line for line in lines)
    assert any(re.search(r"\bld\.(global\.)?[bfu]64", line) for line in lines)


@pytest.fixture
def printed(monkeypatch, capsys):
    """A function that returns what `--source NAME` prints, without a compiler."""
    monkeypatch.setattr(compiler, "toolchain", lambda: pytest.fail("not needed"))

    def print_source(name):
        assert cli.main(["kernels", "--source", name]) == 0
        return capsys.readouterr().out

    return print_source


@pytest.mark.parametrize("shipped", planned.named_kernels((9, 0))[::5], ids=str)
def test_source(shipped, printed):
    """It needs no compiler, is Python that fits its lines, and is the function that is compiled."""
    said = printed(str(shipped))
    path, line = said.splitlines()[0].removeprefix("# ").split(", line ")
    assert path == shipped.function.__module__.replace(".", "/") + ".py"
    assert int(line) == shipped.function.__code__.co_firstlineno
    (function,) = ast.parse(said).body
    assert function.name == shipped.function.__name__ and ast.unparse(function.decorator_list[0]) in DECORATORS
    assert ast.get_docstring(function) == inspect.getdoc(shipped.function)
    assert all(len(line) <= 120 and line == line.rstrip() for line in said.splitlines())


def test_source_lists_the_constants_that_decide_its_branches(printed):
    lines = printed("lstm_persistent_forward_training-float16-h768_b16").splitlines()
    constants = " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))
    assert re.search(r"\bSEQUENCES = \d+, .*\bmasked = False, .*\bnumber = float32\b", constants)
    assert any(line.strip().startswith("# 2. Run the cell for the block's units") for line in lines)
