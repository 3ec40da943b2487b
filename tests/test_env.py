"""Settings from the environment: what wins, how text is read as a value, and overrides that end."""

import os
import threading

import pytest

from rlx import env


@pytest.fixture(autouse=True)
def clean():
    env.clear_overrides()
    yield
    env.clear_overrides()


def test_override_beats_the_environment(monkeypatch):
    monkeypatch.setenv("RLX_TEST_KEY", "from environment")
    assert env.var("test_key") == "from environment"
    env.set("test_key", "from code")
    assert env.var("RLX_TEST_KEY") == env.var("Test_Key") == "from code"
    env.unset("RLX_TEST_KEY")
    assert env.var("test_key") == "from environment"


def test_unset_is_none():
    assert env.var("test_key") is None and env.var_os("test_key") is None
    assert env.is_unset("test_key")
    env.set("test_key", "")
    assert not env.is_unset("test_key") and env.var("test_key") == ""
    env.unset("test_key")
    env.unset("test_key")


def test_var_os_keeps_the_bytes(monkeypatch):
    monkeypatch.setitem(os.environb, b"RLX_TEST_KEY", b"/tmp/\xff")
    assert env.var_os("test_key") == b"/tmp/\xff"


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on", "2", "x"])
def test_true_flags(text):
    env.set("test_key", text)
    assert env.flag("test_key")


@pytest.mark.parametrize("text", ["", "0", "false", "False", "off", "OFF", "no", "No", " 0 "])
def test_false_flags(text):
    env.set("test_key", text)
    assert not env.flag("test_key")


def test_missing_flag_is_false():
    assert not env.flag("test_key")


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("7", 3, 7),
        ("seven", 3, 3),
        ("0.5", 1.0, 0.5),
        ("7", "a", "7"),
        ("off", True, False),
        ("on", False, True),
        (None, 3, 3),
        ("1.5", 3, 3),
    ],
)
def test_parse_or(text, default, value):
    if text is not None:
        env.set("test_key", text)
    got = env.parse_or("test_key", default)
    assert got == value and type(got) is type(default)


def test_builder_applies_all_at_once():
    builder = env.RlxEnv().set("test_a", "1").flag("test_b").flag("RLX_TEST_C", False)
    assert env.is_unset("test_a")
    builder.apply()
    assert (env.var("test_a"), env.flag("test_b"), env.flag("test_c")) == ("1", True, False)


def test_scoped_overrides_restore_what_was_there():
    env.set("test_a", "before")
    with env.RuntimeOverrides.install({"test_a": "inside", "test_b": "new"}):
        assert (env.var("test_a"), env.var("test_b")) == ("inside", "new")
        with env.RuntimeOverrides.install([("RLX_TEST_A", "deeper")]):
            assert env.var("test_a") == "deeper"
        assert env.var("test_a") == "inside"
        env.set("test_c", "kept")
    assert (env.var("test_a"), env.var("test_b"), env.var("test_c")) == ("before", None, "kept")


def test_scoped_overrides_restore_after_an_error():
    with pytest.raises(KeyError), env.RuntimeOverrides.install({"test_a": "1"}):
        raise KeyError
    assert env.is_unset("test_a")


def test_threads_do_not_lose_each_others_overrides():
    def work(name):
        for i in range(200):
            with env.RuntimeOverrides.install({f"test_{name}": str(i)}):
                assert env.var(f"test_{name}") == str(i)
            env.set(f"test_{name}_last", str(i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [env.var(f"test_{n}_last") for n in range(4)] == ["199"] * 4
    assert all(env.is_unset(f"test_{n}") for n in range(4))
