"""The compiled forms of the pure modules are those of the present sources."""

import importlib.machinery
import re
from pathlib import Path

import pytest

import shardsrv

PACKAGE = Path(shardsrv.__file__).parent
SETUP = PACKAGE.parent / "setup.py"


@pytest.mark.skipif(not SETUP.exists(), reason="an installed package has no sources to compare with")
def test_no_compiled_module_is_older_than_its_source() -> None:
    hot = re.findall(r'^    "shardsrv/([\w/]+)\.py",$', SETUP.read_text(), flags=re.MULTILINE)
    assert len(hot) >= 8
    stale = []
    for name in hot:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            compiled = PACKAGE / f"{name}{suffix}"
            sources = [PACKAGE / f"{name}{ending}" for ending in (".py", ".pxd")]
            assert all(source.exists() for source in sources), f"{name} is compiled with a .pxd beside it"
            if compiled.exists() and compiled.stat().st_mtime < max(source.stat().st_mtime for source in sources):
                stale.append(compiled.name)
    assert not stale, f"build again (setup.py build_ext --inplace), or remove: {stale}"
