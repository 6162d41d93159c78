"""The file of PATHWAYS_CONFIG: read by scripts that never import pathways, too, and wrong lines are told by number."""

import re
import sys
from pathlib import Path

import fresh
import pytest
from jax_plugins.pathways import config

PLAIN = "import jax\nprint(len(jax.devices()), 'pathways' in __import__('sys').modules)"
UNSET = {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": "", "PATHWAYS_CONFIG": ""}


def plain(said: str, path: Path, **env: str):
    """Runs a plain JAX script, which JAX's discovery of plugins leads to Pathways."""
    path.write_text(said)
    env = {**UNSET, "PATHWAYS_CONFIG": str(path), **env}
    return fresh.run(PLAIN, backend=None, env=env, check=False, imports=False)


def test_a_plain_script_takes_the_file(tmp_path):
    file = tmp_path / "pathways.toml"
    assert plain("devices = 3", file).stdout == "3 True\n"
    assert plain('address = "local:2x1"', file).stdout == "2 True\n"
    assert plain("devices = 3", file, PATHWAYS_DEVICES="2").stdout == "2 True\n"
    assert plain('wait = "1s"', file).stdout == "1 False\n"  # it asks for no devices of ours
    assert plain("devices = 3", file, JAX_PLATFORMS="cpu").stdout == "1 False\n"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'wait = 1\nadress = "unix:/x"',
            'line 2: there is no option "adress"; expected lines of the form name = value',
        ),
        ("devices = 0", "line 1: devices is 0; expected a whole number of devices"),
        ('\nwait = "soon"', "line 2: wait is 'soon'; expected seconds"),
    ],
)
def test_a_wrong_line_is_told(tmp_path, said, told):
    file = tmp_path / "pathways.toml"
    done = plain(said if "wait" not in said else f"{said}\ndevices = 2", file)
    assert done.returncode != 0 and f"INVALID_ARGUMENT: {file}, {told}" in done.stderr, done.stderr
    file.write_text(said)
    done = fresh.run("pathways.devices()", env={**UNSET, "PATHWAYS_CONFIG": str(file)}, check=False)
    assert done.returncode != 0 and f"INVALID_ARGUMENT: {file}, {told}" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("said", "line", "told"),
    [
        ("devices = 1\ncolor = 'red'\nadress = ''", 2, 'there is no option "color"; expected lines of the form'),
        ("# one\n\n[worker]\ndevices = 2", 3, 'there is no option "worker"'),
        ("config = 'other'", 1, 'there is no option "config"'),
        ("wait = 5\nwait = 6", 2, "Cannot overwrite a value; expected lines"),
        (
            "log = 'info'\nwait = soon",
            2,
            'Invalid value; a text needs quotes: "soon"; expected lines of the form name = value',
        ),
        ("cluster = default # mine", 1, 'Invalid value; a text needs quotes: "default"; expected lines'),
        ("batch = True", 1, "Invalid value; expected lines"),
        ("dir = /tmp/x", 1, 'Invalid value; a text needs quotes: "/tmp/x"; expected lines'),
        ("devices", 1, ""),
        ("listen = ['a']", 1, "the value of listen is a list, a table or a date; expected a text in quotes"),
    ],
)
def test_what_a_file_cannot_say_is_refused_with_its_line(tmp_path, monkeypatch, said, line, told):
    file = tmp_path / "pathways.toml"
    file.write_text(said)
    monkeypatch.setenv("PATHWAYS_CONFIG", str(file))
    with pytest.raises(config.ConfigError) as caught:
        config.read()
    code, message = caught.value.args
    assert code == "INVALID_ARGUMENT" and message.startswith(f"{file}, line {line}: {told}"), message
    assert all(name in message for name in config.OPTIONS) or "listen is a list" in told


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHWAYS_CONFIG", str(tmp_path / "none"))
    with pytest.raises(config.ConfigError) as caught:
        config.read()
    assert caught.value.args[0] == "NOT_FOUND" and str(tmp_path / "none") in caught.value.args[1]
    monkeypatch.setenv("PATHWAYS_CONFIG", sys.executable)
    with pytest.raises(config.ConfigError) as caught:
        config.read()
    assert caught.value.args[0] == "INVALID_ARGUMENT" and sys.executable in caught.value.args[1]


def test_values_of_any_type_are_read_as_texts(tmp_path, monkeypatch):
    file = tmp_path / "pathways.toml"
    file.write_text('wait = 1.5\nbatch = false\n"devices" = 3\nisland = " a "\n')
    monkeypatch.setenv("PATHWAYS_CONFIG", str(file))
    assert {name: said.text for name, said in config.read().items()} == {
        "wait": "1.5",
        "batch": "false",
        "devices": "3",
        "island": "a",
    }


def test_scripts_and_commands_know_the_same_options():
    done = fresh.run("import pathways_command\npathways_command.main(['options'])", backend=None)
    variables = {words[1] for words in map(str.split, done.stdout.splitlines()[1:]) if words}
    assert variables == {"PATHWAYS_" + name.upper().replace("-", "_") for name in (*config.OPTIONS, "config")}


def test_every_variable_is_in_the_commands_help():
    """What the sources read, `pathways options` and `pathways --help` name, and the other way round."""
    said = fresh.run("import pathways_command as c\nc.main(['options'])\nc.main(['--help'])", backend=None).stdout
    documented = set(re.findall(r"PATHWAYS_[A-Z_]+[A-Z]", said))
    options = {"PATHWAYS_" + name.upper().replace("-", "_") for name in (*config.OPTIONS, "config")}
    root = Path(__file__).parents[2]
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("python", "core", "capi", "device", "transport")
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".go", ".c") and not path.name.endswith("_test.go")
    ]
    look = re.compile(r"""(?:environ(?:\.get)?|getenv|[Ll]ookup(?:Env)?|Getenv)\s*[(\[]\s*["'](PATHWAYS_[A-Z_]+)["']""")
    read = {name for source in sources for name in look.findall(source)}
    assert {"PATHWAYS_TOKEN", "PATHWAYS_CONFIG", "PATHWAYS_PLUGIN_DIRS", "PATHWAYS_LIBRARY"} <= read
    assert read <= documented, f"not documented: {read - documented}"
    quoted = {name for source in sources for name in re.findall(r'"(PATHWAYS_[A-Z_]+)"', source)}
    assert documented <= options | quoted, f"not read: {documented - options - quoted}"
