import os
import subprocess
import sys

import pytest

from ppln.engine.config import Machine
from ppln.engine.fabric import launch

LEAVES = """
import atexit, threading, time
from torch import distributed
from ppln.engine.fabric import leave

leave("alone", 5)
print("still here")
distributed.init_process_group("gloo", init_method="file://{meet}", rank=0, world_size=1)
atexit.register(print, "tidied")
threading.Thread(target=time.sleep, args=(600,)).start()  # Python would wait for it
leave("among others", 7)
"""


def test_only_a_process_among_others_is_ended_at_once(tmp_path):
    code = LEAVES.format(meet=tmp_path / "meet")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (7, "still here\ntidied\n", "among others\n")


@pytest.mark.parametrize("name", ["devices", "workers"])
def test_no_more_processes_than_a_machine_bears(name, monkeypatch):
    """As a file of settings may say: they are counted before the first is started."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("one is started"))
    with pytest.raises(ValueError, match=rf"^{name} is 17, but this machine has 2 cores; give 16 at most$"):
        launch(Machine(device="cpu", **{name: 17}))
    launch(Machine(device="cpu", workers=16))


def test_other_machines_that_nobody_started_are_not_waited_for(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=r"^nodes is 2, but torchrun has not started this; .*nodes=1"):
        launch(Machine(device="cpu", nodes=2))
