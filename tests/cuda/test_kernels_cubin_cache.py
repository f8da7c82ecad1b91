"""The cache of compiled kernels: what distinguishes two kernels, and where files are kept."""

import numpy as np

from numbarnn.cuda import cubin_cache


def test_what_is_written_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert cubin_cache.read("key") is None
    cubin = b"\x7fELF\n{}\n" + bytes(range(256))
    cubin_cache.write("key", {"name": "kernel", "sizes": [8, 4]}, cubin)
    assert cubin_cache.read("key") == ({"name": "kernel", "sizes": [8, 4]}, cubin)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["key.cubin"]


def test_fingerprint_covers_code_defaults_and_globals():
    def make(source, **names):
        exec(source, names)
        return cubin_cache.fingerprint(names["f"])

    plain = make("def f(x): return x + A", A=1)
    assert make("def f(x): return x + A", A=1) == plain
    different = [
        make("def f(x): return x + A", A=2),
        make("def f(x): return x + A", A=1.0),
        make("def f(x): return x - A", A=1),
        make("def f(x, y=3): return x + A", A=1),
        make("def f(x): return x + A[0]", A=np.array([1, 2])),
        make("def f(x): return x + A[0]", A=np.array([1, 3])),
        make("def g(x): return x\ndef f(x): return g(x) + A", A=1),
        make("def g(x): return -x\ndef f(x): return g(x) + A", A=1),
        make("def f(x): return f(x) + A", A=1),
    ]
    assert len({plain, *different}) == 1 + len(different)


def test_directory_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBARNN_CACHE_DIR", raising=False)
    monkeypatch.setattr(cubin_cache.Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for platform, expected in [
        ("linux", tmp_path / ".cache" / "numbarnn"),
        ("darwin", tmp_path / "Library" / "Caches" / "numbarnn"),
    ]:
        monkeypatch.setattr(cubin_cache.sys, "platform", platform)
        assert cubin_cache.directory() == expected
    monkeypatch.setattr(cubin_cache.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cubin_cache.directory() == tmp_path / "local" / "numbarnn"
    monkeypatch.setattr(cubin_cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cubin_cache.directory() == tmp_path / "xdg" / "numbarnn"
