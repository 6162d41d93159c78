"""Build hook of the wheel: runs Go and puts libpathways.so into the package.

The library holds no CPython ABI (Python reaches it by ctypes), so one wheel
serves every Python 3 of its platform: the tag is py3-none-<platform>.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "python/pathways/libpathways.so"


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
        command = [
            *(go, "build", "-buildmode=c-shared", "-trimpath"),
            # Quoted twice, for Go and for the linker: the path may hold spaces.
            *("-ldflags", f"-extldflags \"'-Wl,--version-script={exports}'\""),
            *("-o", LIBRARY, "./capi/lib"),
        ]
        self.app.display_info("openpathways: " + " ".join(command))
        if subprocess.run(command, cwd=root, env=env).returncode != 0:
            self.app.abort("openpathways: go build failed, see its messages above; it needs Go 1.26 or newer and gcc.")
        # c-shared writes a C header beside the library; the package does not use it.
        (root / LIBRARY).with_suffix(".h").unlink(missing_ok=True)

        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(LIBRARY)
