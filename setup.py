"""Extensions and compiler flags. Metadata lives in pyproject.toml.

Two kinds of module are compiled:

* every hand-written ``.pyx`` below ``shardsrv/`` (memory and system calls);
* the hot modules of the pure rooms named in ``HOT``: ordinary ``.py`` files, compiled as they are. With
  ``SHARDSRV_PURE=1`` in
  the environment of the build they are left alone and the same files run interpreted.

``SHARDSRV_DEBUG=1`` turns on C assertions and leaves annotated HTML beside the sources. ``SHARDSRV_BUILT=1`` says that
the extensions were built in place before, and only the package is to be made known.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PURE = os.environ.get("SHARDSRV_PURE") == "1"
DEBUG = os.environ.get("SHARDSRV_DEBUG") == "1"
BUILT = os.environ.get("SHARDSRV_BUILT") == "1"

HOT: tuple[str, ...] = (
    "shardsrv/plane/partition/dedup.py",
    "shardsrv/plane/partition/plane.py",
    "shardsrv/shards/answers.py",
    "shardsrv/shards/disk_space.py",
    "shardsrv/shards/group.py",
    "shardsrv/shards/partition_group.py",
    "shardsrv/shards/partition_writes.py",
    "shardsrv/shards/pump.py",
    "shardsrv/shards/router.py",
    "shardsrv/shards/session.py",
    "shardsrv/shards/target.py",
    "shardsrv/store/log_reader.py",
    "shardsrv/store/log_writer.py",
    "shardsrv/vsr/effects.py",
    "shardsrv/vsr/events.py",
    "shardsrv/vsr/pipeline.py",
    "shardsrv/vsr/plane.py",
    "shardsrv/vsr/record.py",
    "shardsrv/vsr/replica.py",
)
"""Modules that are compiled, by path below the root. The ``.pxd`` beside each gives it C fields."""

DIRECTIVES = {"language_level": 3, "embedsignature": True, "binding": False}
# Overflow is checked in the room whose integers come from peers (decoders bound them below 2**62 already).
# Annotations are for people and mypy there: the types that the compiler is to trust stand in the ``.pxd``.
CHECKED = DIRECTIVES | {"overflowcheck": True, "annotation_typing": False}


def require_toolchain() -> None:
    """Refuse early, in one sentence that names the package to install."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("cc") is None and shutil.which("gcc") is None:
        sys.exit(
            f"shardsrv: no C compiler ({compiler}) was found; install one, for example the package gcc "
            "(Debian: build-essential)."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        sys.exit(
            f"shardsrv: {header} is missing; install the headers of this Python, for example the package python3-dev."
        )


def extensions() -> list[Extension]:
    flags = ["-O2", "-Wall", "-Wno-unused-function", "-fno-strict-aliasing"]
    macros = []
    if DEBUG:
        flags += ["-O0", "-g"]
    else:
        flags += ["-DNDEBUG"]
        macros += [("CYTHON_WITHOUT_ASSERTIONS", "1")]
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "shardsrv").rglob("*.pyx"))
    if not PURE:
        sources += [path for path in HOT if (ROOT / path).exists()]
    return [
        Extension(
            str(Path(source).with_suffix("")).replace(os.sep, "."),
            [source],
            extra_compile_args=flags,
            define_macros=macros,
        )
        for source in sources
    ]


class BuildExtensions(build_ext):
    """Cythonize late, so that metadata commands need neither Cython nor a compiler."""

    def finalize_options(self) -> None:
        require_toolchain()
        from Cython.Build import cythonize

        modules = self.distribution.ext_modules or []
        if modules and not getattr(self.distribution, "_cythonized", False):
            pure = [module for module in modules if module.sources[0].endswith(".py")]
            written = [module for module in modules if module not in pure]
            common = {"annotate": DEBUG, "quiet": True, "nthreads": os.cpu_count() or 1}
            self.distribution.ext_modules = [
                *cythonize(written, compiler_directives=DIRECTIVES, **common),
                *cythonize(pure, compiler_directives=CHECKED, **common),
            ]
            self.distribution._cythonized = True
        super().finalize_options()


setup(ext_modules=[] if BUILT else extensions(), cmdclass={"build_ext": BuildExtensions})
