"""Build hook of the wheel: runs Go and puts libpathways.so into the package.

The library has no CPython ABI (Python reaches it by ctypes), so one wheel serves every Python 3 of its platform. Its
tag is py3-none-manylinux_2_N_<machine>, where 2.N is the oldest glibc with all the symbols that the library needs.

glibc 2.32 and 2.34 moved the functions for threads, dlopen and name resolution into libc.so.6 under new versions, and
kept the old versions, at the same addresses, for programs that were linked before. On x86-64 the hook links the library
as such a program, against stubs that have these functions where they were. So it runs on glibc 2.17 and newer, wherever
it was built, by the compiler of that machine. docs/design/decisions/2026-11-wheel.md has the other ways and why not.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "python/pathways/libpathways.so"
# The library and version that each function had on x86-64 before it moved. tests/python/test_wheel.py fails, and names
# the function, when the library begins to use another one that moved.
MOVED = {
    ("libpthread.so.0", "GLIBC_2.2.5"): (
        "pthread_attr_getstack pthread_attr_getstacksize pthread_create pthread_getattr_np pthread_getspecific "
        "pthread_key_create pthread_once pthread_rwlock_rdlock pthread_rwlock_unlock pthread_rwlock_wrlock "
        "pthread_setspecific pthread_sigmask"
    ),
    ("libpthread.so.0", "GLIBC_2.3.3"): "pthread_condattr_setclock",
    ("libdl.so.2", "GLIBC_2.2.5"): "dladdr dlclose dlerror dlopen dlsym",
    ("libresolv.so.2", "GLIBC_2.2.5"): "__res_search",
}
# Go's resolver calls res_search. Before glibc 2.34 that was a macro for __res_search, which every glibc has.
RES_SEARCH = """
int __res_search(const char *name, int class, int type, unsigned char *answer, int length);
__attribute__((visibility("hidden")))
int res_search(const char *name, int class, int type, unsigned char *answer, int length) {
  return __res_search(name, class, type, answer, length);
}
"""


def older_glibc(compiler: list[str], folder: Path) -> list[Path]:
    """Makes what the library is linked with so that it also runs on an older glibc; returns the linker's inputs."""
    source, inputs = folder / "res_search.c", [folder / "res_search.o"]
    source.write_text(RES_SEARCH)
    subprocess.run([*compiler, "-O2", "-fPIC", "-c", source, "-o", inputs[0]], check=True)
    for name in dict.fromkeys(name for name, _ in MOVED):
        functions = {version: moved.split() for (of, version), moved in MOVED.items() if of == name}
        assembly, versions = folder / f"{name}.s", folder / f"{name}.map"
        assembly.write_text(
            "".join(f".globl {f}\n.type {f}, @function\n{f}:\n" for each in functions.values() for f in each)
            + '.section .note.GNU-stack, "", @progbits\n'
        )
        versions.write_text("".join(f"{version} {{ {'; '.join(each)}; }};\n" for version, each in functions.items()))
        inputs.append(folder / name)
        flags = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}"]
        subprocess.run([*compiler, *flags, assembly, "-o", inputs[-1]], check=True)
    return inputs


def tag(library: Path) -> str:
    """The wheel's platform tag: the oldest glibc that the library runs on."""
    plain = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    readelf = shutil.which("readelf")
    if readelf is None or platform.libc_ver()[0] != "glibc":
        return plain
    needs = subprocess.run([readelf, "--version-info", library], check=True, capture_output=True, text=True).stdout
    newest = max([17, *(int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", needs))])
    return f"manylinux_2_{newest}_{platform.machine()}"


class GoLibraryHook(BuildHookInterface):
    """Compiles ./capi/lib as a C shared library, for wheels and for editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
        if go is None:
            self.app.abort(
                "openpathways: Go was not found on PATH; install Go 1.26 or newer (https://go.dev/dl) and try again."
            )
        env = dict(os.environ, CGO_ENABLED="1")
        # Asked outside the module, so that an old Go answers instead of looking for a newer toolchain.
        compiler = subprocess.run([go, "env", "CC"], cwd="/", env=env, capture_output=True, text=True).stdout.split()
        if not compiler or shutil.which(compiler[0]) is None:
            self.app.abort(
                f"openpathways: the C compiler {' '.join(compiler) or 'gcc'!r} was not found; install gcc "
                "(Debian, Ubuntu: apt install gcc libc6-dev) or set CC, and try again."
            )
        exports = root / "capi" / "lib" / "exports.map"
        with tempfile.TemporaryDirectory(prefix="openpathways-") as folder:
            # No debug information, but symbols: by them debuggers, profilers and sanitizers name C functions.
            inputs = ["-Wl,--strip-debug", f"-Wl,--version-script={exports}"]
            if (platform.machine(), platform.libc_ver()[0]) == ("x86_64", "glibc"):
                inputs += map(str, older_glibc(compiler, Path(folder)))
            command = [
                *(go, "build", "-buildmode=c-shared", "-trimpath"),
                # The linker's inputs are quoted twice, for Go and for the linker: paths may hold spaces.
                *("-ldflags", '-w -extldflags "' + " ".join(f"'{each}'" for each in inputs) + '"'),
                *("-o", LIBRARY, "./capi/lib"),
            ]
            self.app.display_info("openpathways: " + " ".join(command))
            if subprocess.run(command, cwd=root, env=env).returncode != 0:
                self.app.abort(
                    "openpathways: go build failed, see its messages above; it needs Go 1.26 or newer and gcc."
                )
        # c-shared writes a C header beside the library; the package does not use it.
        (root / LIBRARY).with_suffix(".h").unlink(missing_ok=True)

        build_data["tag"] = f"py3-none-{tag(root / LIBRARY)}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(LIBRARY)
