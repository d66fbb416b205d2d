"""The versions of what figures depend on."""

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    "semigpc",
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "numpy",
    "scikit-learn",
    "safetensors",
    "pyarrow",
)
MISSING = "not installed"  # in place of a version


def versions(*more: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on, or ``more``.

    None is imported, so that a broken installation can be examined too.
    """
    installed = {"python": platform.python_version(), "platform": platform.platform()}
    for name in (*PACKAGES, *more):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = MISSING
    return installed
