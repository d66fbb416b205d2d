"""What is installed, told without importing any of it, so that a broken installation can be looked at too."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("semigpc", "torch", "torchvision", "timm", "lightning-fabric", "numpy", "scikit-learn", "safetensors", "pyarrow")
MISSING = "not installed"


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python, of the packages that figures depend on and of ``more`` packages, by name."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = MISSING
    return found
