"""Builds the native library (docs/design/native.md) where there is a C++ compiler; without one, the install goes on.

The library is plain C to its callers (ctypes), so one build serves every version of Python and PyTorch. Its kernels are
compiled once for each instruction set, and the best one is picked where it runs, whatever the building machine has.
HEADRACE_NATIVE=0 leaves it out, as Windows does: the wheel then is one for every platform.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCE = Path("src/headrace/native/src")
FLAGS = [
    "-O3", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wextra",
    # Sums in any order and reciprocals, so that loops become vectors; infinities and NaN keep their meaning.
    "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros", "-freciprocal-math",
]  # fmt: skip
INSTRUCTION_SETS: dict[str, list[str]] = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS |= {
        "avx2": ["-march=x86-64-v3"],
        "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
        "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16", "-mprefer-vector-width=512"],
        "amx": ["-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mprefer-vector-width=512"],
    }


class BuildLibrary(build_ext):
    """Compiles the kernels for each instruction set, and links all into one plain shared library."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        extra = os.environ.get("HEADRACE_NATIVE_FLAGS", "").split()  # such as those of sanitizers: make sanitize
        objects = self._compile(["pool.cpp", "entry.cpp"], "common", extra)
        for name, flags in INSTRUCTION_SETS.items():
            objects += self._compile(["engine.cpp"], name, [f"-DISA={name}", *flags, *extra])
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(objects, str(path), extra_postargs=["-pthread", *extra], target_lang="c++")

    def _compile(self, names: list[str], folder: str, flags: list[str]) -> list[str]:
        paths = [str(SOURCE / name) for name in names]
        compiled: list[str] = self.compiler.compile(
            paths, output_dir=str(Path(self.build_temp) / folder), extra_postargs=[*FLAGS, *flags]
        )
        return compiled


class AnyPython(bdist_wheel):
    """Marks wheels as of one platform (of any, without the library) and every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


library = Extension(
    "headrace.native.libheadrace",
    sources=[str(path) for path in sorted(SOURCE.glob("*.cpp"))],
    depends=[str(path) for path in sorted(SOURCE.glob("*.h"))],
    language="c++",
    optional=True,
)
commands: dict[str, Any] = {"build_ext": BuildLibrary, "bdist_wheel": AnyPython}
is_native = sys.platform != "win32" and os.environ.get("HEADRACE_NATIVE") != "0"
setup(ext_modules=[library] if is_native else [], cmdclass=commands)
