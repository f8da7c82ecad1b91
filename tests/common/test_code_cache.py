"""The cache of compiled kernels: what distinguishes two kernels, and where files are kept."""

import numpy as np

from numbarnn.common import code_cache


def test_what_is_written_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path / "new" / "folder"))
    assert code_cache.read("key") is None
    cubin = b"\x7fELF\n{}\n" + bytes(range(256))
    code_cache.write("key", {"name": "kernel", "sizes": [8, 4]}, cubin)
    assert code_cache.read("key") == ({"name": "kernel", "sizes": [8, 4]}, cubin)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["key.cubin"]


def test_fingerprint_covers_code_defaults_and_globals():
    def make(source, **names):
        exec(source, names)
        return code_cache.fingerprint(names["f"])

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


FUNCTION = """
def outer(x):
    def inner(y):
        return y + A
    return inner(x) * 2
"""


def made(source, name="outer", **names):
    names = {"A": 1, "__name__": "somewhere", **names}
    exec(compile(source, "file.py", "exec"), names)
    return names[name]


def test_comments_docstrings_and_places_are_not_code():
    """Neither of a kernel nor of the modules that it may take something from."""
    documented = FUNCTION.replace("(x):", "(x):\n    'One.'").replace("(y):", "(y):\n        'Two.'")
    changed = "# begins\n\n" + documented.replace("One", "First").replace("Two", "Second") + "# ends\n"
    one, other = made(documented), made(changed, __name__="elsewhere")
    assert one.__doc__ != other.__doc__ and one.__module__ != other.__module__
    assert code_cache.fingerprint(one) == code_cache.fingerprint(other)
    assert code_cache.code_of("'Says.'\n" + documented) == code_cache.code_of("'Tells.'\n" + changed)
    for text, code in (("y + A", "y - A"), ("* 2", "* 3"), ("return inner(x)", "return inner(A)")):
        assert text in changed
        assert code_cache.fingerprint(made(changed.replace(text, code))) != code_cache.fingerprint(one)
        assert code_cache.code_of(changed.replace(text, code)) != code_cache.code_of(changed)


def test_a_text_that_is_no_docstring_is_code():
    for source in ("def outer(x): return 'a'", "outer = lambda x: 'a'", "class outer:\n    kind = 'a'", "outer = 'a'"):
        assert code_cache.code_of(source) != code_cache.code_of(source.replace("'a'", "'b'"))


def test_a_changed_comment_of_the_package_leaves_keys_as_they_are(monkeypatch, tmp_path):
    keys = []
    (tmp_path / "kernels").mkdir()
    for text in ('"""Doc."""\nx = 1\n', '"""Documentation."""\n# one\nx = 1\n', '"""Doc."""\nx = 2\n'):
        (tmp_path / "kernels" / "module.py").write_text(text)
        monkeypatch.setattr(code_cache, "_PACKAGE", tmp_path)
        code_cache.package_code.cache_clear()
        keys.append(code_cache.key(made(FUNCTION), "parts"))
    code_cache.package_code.cache_clear()
    assert keys[0] == keys[1] != keys[2]


def test_directory_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBARNN_CACHE_DIR", raising=False)
    monkeypatch.setattr(code_cache.Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for platform, expected in [
        ("linux", tmp_path / ".cache" / "numbarnn"),
        ("darwin", tmp_path / "Library" / "Caches" / "numbarnn"),
    ]:
        monkeypatch.setattr(code_cache.sys, "platform", platform)
        assert code_cache.directory() == expected
    monkeypatch.setattr(code_cache.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert code_cache.directory() == tmp_path / "local" / "numbarnn"
    monkeypatch.setattr(code_cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert code_cache.directory() == tmp_path / "xdg" / "numbarnn"
