"""Programs that are not JAX: on the devices of their own process, and on those of clusters.

Those in C and Rust use openpathways.h; that in Go trains with go-xla, and another with PyTorch/XLA, which know the
library as a PJRT plugin.

Each in C is built with the address sanitizer where the compiler has one, which also reports what is not
freed at the end.
"""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fresh
import pathways
import pytest
from conftest import ADDRESS

CLIENTS = Path(__file__).parent / "clients"
LIBRARY = pathways._native.library_path()
PACKAGE = Path(pathways.__file__).parent

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")


@functools.cache
def sanitizer() -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.write_text("int main(void) { return 0; }")
        flags = ("-fsanitize=address",)
        built = (
            subprocess.run(["gcc", *flags, source, "-o", Path(folder, "empty")], capture_output=True).returncode == 0
        )
        return flags if built and subprocess.run([Path(folder, "empty")], capture_output=True).returncode == 0 else ()


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients")

    @functools.cache
    def build(name: str, *more: str) -> Path:
        out = folder / name
        flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *sanitizer(), *more)
        link = (f"-L{LIBRARY.parent}", f"-l:{LIBRARY.name}", f"-Wl,-rpath,{LIBRARY.parent}", "-lpthread")
        source = CLIENTS / f"{name}.c"
        subprocess.run(["gcc", *flags, f"-I{PACKAGE}/include", source, "-o", out, *link], check=True)
        return out

    return build


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    # Go keeps what it knows to the end, in memory that the sanitizer does not search; and the attributes of clusters
    # are never freed, since PJRT clients keep what they read.
    suppressions = tmp_path_factory.mktemp("sanitizer") / "leaks"
    suppressions.write_text("leak:_cgo_\n")
    return fresh.environment(
        env={
            "PATHWAYS_PLUGIN": fresh.plugin_path(),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # A large quarantine looks like growth. And up to GCC 13 the sanitizer takes a thread's memory that lies 16
            # bytes into a page for one of glibc 2.19, believes the words before it to be its address and length, and
            # dies of them when it looks for leaks (google/sanitizers#1322). It finds such memory by the heap, too.
            "ASAN_OPTIONS": "quarantine_size_mb=16:intercept_tls_get_addr=0",
            "LSAN_OPTIONS": f"suppressions={suppressions}:print_suppressions=0",
        }
    )


def run(*command: object, env: dict[str, str]) -> str:
    done = subprocess.run(
        [str(c) for c in command], env=env, capture_output=True, text=True, timeout=fresh.HANG_SECONDS
    )
    assert done.returncode == 0, f"exit {done.returncode}; stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    return done.stdout


TWO = pytest.param("local:2x2", marks=pytest.mark.again("these tests on two workers, which are processes"))
where = pytest.mark.parametrize("address", [ADDRESS] if ADDRESS else ["", TWO])


@where
def test_programs_run_and_give_their_results(build, environment, address):
    assert run(build("run"), address, env=environment) == "ok\n"


@where
def test_handles_arguments_callbacks_threads_and_rounds(build, environment, address):
    assert run(build("lifetimes"), address, 2_000 if address else 100_000, env=environment) == "ok\n"


@where
def test_a_pjrt_client_that_is_older_than_the_library(build, environment, address):
    abi = CLIENTS.parent.parent / "device" / "pjrt" / "abi"
    assert run(build("short", f"-I{abi}"), address, env=environment) == "ok\n"


@where
def test_slices_and_programs_work_from_c(build, environment, address):
    assert run(build("programs"), address, env=environment) == "ok\n"


@where
def test_tensors_of_dlpack_and_arrow_data(build, environment, address):
    assert run(build("exchange"), address, env=environment) == "ok\n"


@where
def test_a_client_in_rust_links_and_runs(environment, address, tmp_path):
    if shutil.which("rustc") is None:
        pytest.skip("no rustc on this machine")
    link = ("-L", LIBRARY.parent, "-l", "dylib=pathways", "-C", f"link-arg=-Wl,-rpath,{LIBRARY.parent}")
    build = ("rustc", "--edition", "2021", CLIENTS / "client.rs", "-o", tmp_path / "client", *link)
    subprocess.run(build, check=True)
    assert run(tmp_path / "client", address, env=environment) == "ok\n"


@pytest.fixture(scope="module")
def gomlx(tmp_path_factory):
    """The program that trains with go-xla, and the folder where that finds the library by a plugin's name."""
    go = os.environ.get("GO") or shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("no go on this machine")
    folder, source = tmp_path_factory.mktemp("gomlx"), CLIENTS / "gomlx"
    had = subprocess.run([go, "mod", "download"], cwd=source, capture_output=True, text=True)
    if had.returncode:
        pytest.skip(f"the modules of {source / 'go.mod'} are not to be had: {had.stderr}")
    subprocess.run([go, "build", "-o", folder / "gomlx", "."], cwd=source, check=True)
    (folder / "pjrt_c_api_pathways_plugin.so").symlink_to(LIBRARY)
    return folder


@where
def test_client_in_go_trains_with_go_xla(gomlx, environment, address):
    env = {**environment, "PJRT_PLUGIN_LIBRARY_PATH": str(gomlx), "PATHWAYS_ADDRESS": address}
    devices = () if address else ("-devices", 8)
    assert "ok: " in run(gomlx / "gomlx", *devices, env=env)


@where
def test_pytorch_trains_with_pytorch_xla(environment, address):
    if importlib.util.find_spec("torch_xla") is None:
        pytest.skip("PyTorch/XLA is not installed: pip install torch_xla")
    env = {**environment, "PATHWAYS_ADDRESS": address}
    client = (sys.executable, CLIENTS / "pytorch.py", LIBRARY, 0 if address else 8)
    assert "ok: " in run(*client, env=env)


@pytest.mark.embedded("starts a cluster of its own")
def test_a_c_client_runs_on_worker_processes(build, environment, tmp_path):
    up = (sys.executable, "-m", "pathways_command", "up", "--dir", tempfile.mkdtemp(prefix="pw", dir="/tmp"))
    program = ("sh", "-c", f'exec {build("run")} "$PATHWAYS_ADDRESS"')
    env = {**environment, "PATHWAYS_DEVICES": ""}
    try:
        assert "ok\n" in run(*up, "--workers", 2, "--devices", 2, "--", *program, env=env)
    finally:
        shutil.rmtree(up[-1], ignore_errors=True)


def test_the_package_says_how_to_build(environment):
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config on this machine")
    env = {**environment, "PKG_CONFIG_PATH": str(PACKAGE / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "openpathways", env=env).split()
    (include,) = (Path(f[2:]) for f in flags if f.startswith("-I"))
    (library,) = (Path(f[2:]) for f in flags if f.startswith("-L"))
    header = (include / "openpathways.h").read_text()
    assert (library / "libpathways.so").exists() and "-lpathways" in flags
    api = ".".join(re.search(rf"PATHWAYS_API_{part} = (\d+)", header)[1] for part in ("MAJOR", "MINOR"))
    assert run("pkg-config", "--variable=api", "openpathways", env=env).strip() == api
    assert run("pkg-config", "--modversion", "openpathways", env=env).strip() == pathways.__version__


def declared() -> set[str]:
    """The functions of the header."""
    return set(re.findall(r"^[a-z][\w* ]*?\b(pathways_\w+)\(", (PACKAGE / "include/openpathways.h").read_text(), re.M))


def test_the_library_shows_the_plugin_and_this_api_alone():
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    lines = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    names = {line.split()[2] for line in lines.splitlines()}
    assert {n for n in names if not n.startswith("pathways_")} == {"GetPjrtApi"}
    assert declared() <= names
    assert 0 < len(declared()) < 40


def test_the_header_is_c_and_cpp(tmp_path):
    for language, standard in (("c", "c99"), ("c++", "c++11")):
        if language == "c++" and shutil.which("g++") is None:
            continue
        compiler = "gcc" if language == "c" else "g++"
        flags = ("-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
        subprocess.run([compiler, *flags, PACKAGE / "include/openpathways.h"], check=True)
