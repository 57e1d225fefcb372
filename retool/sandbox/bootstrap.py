"""How the sandbox's own interpreters find the few modules that they need, without importing the rest of the package."""

BOOTSTRAP = """\
import sys
from types import ModuleType
root, entry = sys.argv[1:3]
for name in ("retool", "retool.sandbox", "retool.sandbox.local", "retool.sandbox.warm"):
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [root + name.removeprefix("retool").replace(".", "/")]
__import__(entry, fromlist=["main"]).main(sys.argv[3:])
"""
"""For `python -c`. Arguments: the directory of the package `retool`, a module of it, those of its `main`."""
