"""What is written: whole or not at all, refused before the work where it cannot be, and never before it is shown."""

import errno
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from numbarnn import cli
from numbarnn.bench import check, console, info, kernels
from numbarnn.common import files
from stub_layer import use_stub

PLAN = ["plan", "--hidden", "64", "--batch", "4", "--steps", "10", "--profile", "h100"]
CHECK = ["check", "--device", "cpu", "--quick", "--cell", "gru"]
BENCH = ["bench", "--device", "cpu", "--cell", "gru", "--shape", "2,2,3,4,1", "--rounds", "1"]
DEMO = ["demo", "--text", "words.txt", "--hidden", "8", "--batch", "3", "--seq", "8", "--device", "cpu", "--steps", "1"]
TRACE = ["trace", "--shape", "2,2,3,4,1"]
COMMANDS = {
    "info": ["info"],
    "check": CHECK,
    "bench": BENCH,
    "demo": [*DEMO, "--plot", "none"],
    "plan": PLAN,
    "report": ["report"],
    "trace": TRACE,
    "kernels": ["kernels"],
}
INPUTS = {"--text"}  # files that are read
OUTPUTS = [
    (name, option)
    for name in COMMANDS
    for option in ("--json", "--html", "--plot")
    if option in cli.build_parser(name)[0]._subparsers._group_actions[0].choices[name]._option_string_actions
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in, a text for the demo, and stand-ins for what takes long."""
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("the cat sat on the mat, and the dog ran by. " * 30)
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# ------------------------------------------------------------------------------------------------ a file
def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("old")
    path.chmod(0o640)
    with files.replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old" and part.suffix == ".json"
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == ["results.json"]


@pytest.mark.parametrize("error", (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError()))
def test_a_failure_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "results.json"
    path.write_text("old")
    with pytest.raises(type(error)) as caught, files.replacing(path) as part:
        part.write_text("ne")
        raise error
    assert path.read_text() == "old" and names(tmp_path) == ["results.json"]
    if isinstance(error, OSError):
        assert str(caught.value) == f"[Errno 28] No space left on device: '{path}'"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.check_writable(pipe)
    console.write_bytes(pipe, b"through")
    assert os.read(reader, 100) == b"through" and stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)


def test_standard_output_is_written_to(tmp_path):
    """Also where it goes into a file, whose place nothing may take while the shell writes there."""
    program = (
        "import pathlib; from numbarnn.bench import console; path = pathlib.Path('/dev/stdout')\n"
        "assert console.json_path('/dev/stdout') == path; console.write_json(path, [1])"
    )
    for out in ("a pipe", tmp_path / "out"):
        with open(out, "wb") if out != "a pipe" else nullcontext(subprocess.PIPE) as stream:
            ran = subprocess.run([sys.executable, "-c", program], stdout=stream, check=True, timeout=120)
            said = ran.stdout if out == "a pipe" else (os.fstat(stream.fileno()).st_nlink, out.read_bytes())
        assert said in (b"[\n 1\n]\n", (1, b"[\n 1\n]\n"))


def bad_paths(folder):
    """A path -> the error that writing there is."""
    (folder / "file").write_text("in the way")
    (folder / "folder").mkdir()
    return {
        folder / "none" / "x.bin": FileNotFoundError,
        folder / "folder": IsADirectoryError,
        folder / "file" / "x.bin": NotADirectoryError,
    }


def test_where_nothing_can_be_written(tmp_path):
    for path, kind in bad_paths(tmp_path).items():
        before = names(tmp_path)
        for write in (files.check_writable, lambda path: console.write_bytes(path, b"x")):
            with pytest.raises(kind) as caught:
                write(path)
            assert caught.value.filename == str(path) and names(tmp_path) == before


# ------------------------------------------------------------------------------------------------ commands
def test_outputs_are_all_that_commands_have():
    found = set()
    for name in COMMANDS:
        choices = cli.build_parser(name)[0]._subparsers._group_actions[0].choices
        for action in choices[name]._actions:
            if str(action.metavar).startswith("FILE"):
                found |= {(name, option) for option in action.option_strings if option not in INPUTS}
    assert found == set(OUTPUTS) and set(COMMANDS) == set(cli.COMMANDS)


@pytest.mark.parametrize("name, option", OUTPUTS)
def test_unwritable_files_are_refused_before_the_work(name, option, folder, monkeypatch, refused):
    (folder / "file").write_text("in the way")
    (folder / "folder.png").mkdir()
    refusals = {"none/x.png": "directory that exists", "folder.png": "the directory", "file/x.png": "that exists"}
    before = names(folder)
    for path, words in refusals.items():
        said = refused(*COMMANDS[name], option, path)
        assert f"argument {option}: " in said and repr(path) in said and words in said

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", refuse)  # as a folder does for anybody but root
    said = refused(*COMMANDS[name], option, "x.png")
    assert f"argument {option}: expected a file that can be written, got 'x.png'" in said
    assert "Permission denied" in said
    assert names(folder) == before


@pytest.fixture
def quick(name, monkeypatch):
    """The command `name` with stand-ins for what it measures."""
    if name == "bench":
        use_stub(monkeypatch)
    compared = check.engine_failure("cpu", "a stub") | {"options": "float32", "error": 1e-8, "limit": 1e-7}
    monkeypatch.setattr(check, "check_device", lambda *_: [compared])
    monkeypatch.setattr(kernels.compiler, "toolchain", lambda: "a compiler")
    monkeypatch.setattr(kernels, "compile_all", lambda archs: [])


SHOWN = {
    "info": "Engines", "check": "a stub", "bench": "numbarnn bench:",
    "demo": "bits per character", "plan": "Expected: ", "kernels": "0 kernels", "report": "faster than",
    "trace": "Who waits",
}  # fmt: skip


@pytest.mark.parametrize("name, option", {name: option for name, option in OUTPUTS[::-1]}.items())
def test_results_are_shown_although_the_disk_is_full(name, option, folder, quick, monkeypatch, capsys):
    if name == "bench":
        pytest.importorskip("torch")
    if option in ("--html", "--plot"):
        pytest.importorskip("matplotlib")
    rename = Path.replace

    def full(part, path):
        if path.name == "results.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(part, path)

    monkeypatch.setattr(Path, "replace", full)
    (folder / "results.png").write_text("old")
    assert cli.main([*COMMANDS[name], option, "results.png"]) == 1
    said = capsys.readouterr()
    assert SHOWN[name] in said.out
    assert said.err.splitlines()[-1] == f"numbarnn {name}: results.png: No space left on device"
    assert (folder / "results.png").read_text() == "old"
    assert set(names(folder)) - {"proof"} == {"results.png", "words.txt"}


def test_memory_and_files_that_end_a_command(monkeypatch, capsys):
    for error, line in (
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory: Unable to allocate 9 TiB"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "x: No such file or directory"),
    ):
        monkeypatch.setattr(info, "collect", lambda error=error: (_ for _ in ()).throw(error))
        assert cli.main(["info"]) == 1
        assert capsys.readouterr().err == f"numbarnn info: {line}\n"
