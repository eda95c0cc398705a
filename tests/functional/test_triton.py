"""Runs triton_cases.py where its kernels can run: on a GPU, or in Triton's interpreter.

The interpreter is chosen when Triton is first imported, so the cases get a process of their own. To see
them one by one: TRITON_INTERPRET=1 python -m pytest tests/functional/triton_cases.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ppln.functional import HAS_TRITON


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_triton_cases():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*command, Path(__file__).with_name("triton_cases.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
