"""The wheel: what it asks of a machine, and that it is all that a machine without Go or a compiler needs."""

import re
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from pathlib import Path

import fresh
import pytest

# The newest glibc that the library may need, 2.28: that of RHEL 8 and its kin, the oldest in wide use.
NEWEST_GLIBC = 28
# What the wheel brings; everything else in a new environment comes from this one.
OURS = ("pathways", "pathways_command", "openpathways-", "jax_plugins")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that this environment was installed from by make, else one built from this tree."""
    found = sorted(Path(sys.prefix, "wheel").glob("openpathways-*.whl"))
    if not found:
        pytest.importorskip("hatchling")
        folder = tmp_path_factory.mktemp("wheel")
        code = f"import hatchling.build; hatchling.build.build_wheel({str(folder)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
        found = list(folder.glob("*.whl"))
    (wheel,) = found
    return wheel


def test_the_tag_names_an_old_glibc_and_auditwheel_agrees(wheel):
    glibc, machine = re.search(r"-py3-none-manylinux_2_(\d+)_(\w+)\.whl$", wheel.name).groups()
    assert int(glibc) <= NEWEST_GLIBC
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    said = " ".join(shown.stdout.split())
    assert f'consistent with the following platform tag: "manylinux_2_{glibc}_{machine}"' in said


def test_the_library_has_no_debug_information_and_needs_no_symbol_without_a_version(wheel, tmp_path):
    from elftools.elf.elffile import ELFFile

    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("pathways/libpathways.so", tmp_path)
    with open(library, "rb") as file:
        elf = ELFFile(file)
        names = {section.name for section in elf.iter_sections()}
        assert {".dynsym", ".symtab"} <= names
        assert not {name for name in names if name.startswith((".debug", ".zdebug"))}
        # auditwheel judges versions, so it would overlook a function that no library of the linker's had.
        symbols = elf.get_section_by_name(".dynsym")
        versions = elf.get_section_by_name(".gnu.version")
        undefined = {
            symbol.name
            for i, symbol in enumerate(symbols.iter_symbols())
            if symbol["st_shndx"] == "SHN_UNDEF"
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
            and versions.get_symbol(i)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        }
    assert not undefined


def test_it_runs_from_a_new_environment_without_go_or_compiler(wheel, tmp_path):
    here = tmp_path / "venv"
    venv.create(here, symlinks=True)
    python = here / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps")
    subprocess.run([*pip, wheel], check=True)
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(OURS):
            (borrowed / each.name).symlink_to(each)
    site = next(here.glob("lib/python*/site-packages"))
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    code = textwrap.dedent("""\
        import shutil
        import jax, pathways
        assert not (shutil.which("go") or shutil.which("gcc") or shutil.which("cc"))
        pathways.init(devices=8)
        print(pathways.__file__)
        print(jax.jit(lambda x: x @ x.T)(jax.numpy.ones((4, 8))).sum(), len(jax.devices()))
        """)
    env = fresh.environment(env={"PATH": str(here / "bin"), "PATHWAYS_DEVICES": ""})
    for name in ("PYTHONPATH", "PATHWAYS_LIBRARY", "PATHWAYS_ADDRESS"):
        env.pop(name, None)
    ran = subprocess.run([python, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [str(site / "pathways" / "__init__.py"), "128.0 8"]
    doctor = subprocess.run([here / "bin" / "pathways", "doctor"], env=env, capture_output=True, text=True)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert str(site) in doctor.stdout
