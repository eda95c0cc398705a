"""Where a result comes from: versions, the machine, the command. The settings are written beside it."""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ppln import __version__


def about(*, command: bool = True) -> dict[str, Any]:
    """What else decides a result: versions, the machine, the command. The seed is among the settings.

    command: False in files to be published, as folders of the machine may be in it.
    """
    versions = {"python": platform.python_version(), "ppln": __version__}
    for name in ("torch", "numpy", "lightning_fabric", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **({"command": list(sys.argv)} if command else {}),
        "versions": versions,
        "git": _git(Path(__file__).parents[1]),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(i) for i in gpus],
    }


def _git(package: Path) -> dict[str, Any] | None:
    """The revision of the package, and whether its files differ from it; None outside its own checkout."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=package, capture_output=True, text=True, timeout=30, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # a checkout may lie around a virtual environment
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "."))}
    except (OSError, subprocess.SubprocessError):
        return None
