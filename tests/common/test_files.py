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
from numbarnn.bench import console, info
from numbarnn.common import files


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


COMMANDS = {  # with an option that names a file to write
    "--json": ["info"],
    "--plot": ["plan", "--hidden", "64", "--batch", "4", "--steps", "10", "--profile", "h100"],
    "--html": ["trace", "--shape", "2,2,3,4,1"],
}


@pytest.mark.parametrize("option", COMMANDS)
def test_unwritable_files_are_refused_before_the_work(option, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path
    (folder / "file").write_text("in the way")
    (folder / "folder.png").mkdir()
    refusals = {"none/x.png": "directory that exists", "folder.png": "the directory", "file/x.png": "that exists"}
    before = names(folder)
    for path, words in refusals.items():
        said = refused(*COMMANDS[option], option, path)
        assert f"argument {option}: " in said and repr(path) in said and words in said

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "touch", refuse)  # as a folder does for anybody but root
    said = refused(*COMMANDS[option], option, "x.png")
    assert f"argument {option}: expected a file that can be written, got 'x.png'" in said
    assert "Permission denied" in said
    assert names(folder) == before


def test_memory_and_files_that_end_a_command(monkeypatch, capsys):
    for error, line in (
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory: Unable to allocate 9 TiB"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "x: No such file or directory"),
    ):
        monkeypatch.setattr(info, "collect", lambda error=error: (_ for _ in ()).throw(error))
        assert cli.main(["info"]) == 1
        assert capsys.readouterr().err == f"numbarnn info: {line}\n"
