"""Sharp frames per second: the small network that comes with the package, and what it is compared with.

    python benchmarks/deblur.py benchmarks/results/deblur_cpu.json
    python benchmarks/deblur.py benchmarks/results/deblur_h200.json      where there is a GPU

Pictures of 240 x 180, 14 frames from each in one call. All take turns in one run; medians. On a GPU in bf16.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from ppln.engine import provenance
from ppln.models import create_model
from ppln.study import STUDIES

FRAMES, ROUNDS = 14, 7


def networks(gpu: bool) -> dict[str, nn.Module]:
    rows = [STUDIES["deblur"].row(key) for key in ("head-around", "head-pp")]
    made = {
        "deblur-ppln-head-small": create_model("deblur-ppln-head-small"),
        "deblur-ppln-head": create_model("deblur-ppln-head"),
        **{f"{row.title}, of the study": create_model(row.model, **row.options) for row in rows},
        "deblur-unet-14, width 48": create_model("deblur-unet-14", width=48),
        "deblur-edi": create_model("deblur-edi"),
    }
    if gpu:
        made["deblur-ppln, 192 M"] = create_model("deblur-ppln")
        made["the same in released mode"] = create_model("deblur-ppln", semantics="released")
    return made


def main(out: Path) -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    nets = {name: net.to(device).eval() for name, net in networks(gpu).items()}
    results = []
    for pictures in (1, 8) if gpu else (1,):
        x = torch.rand(pictures, 27, 180, 240, device=device)
        t = torch.linspace(0, 1, FRAMES, device=device).expand(pictures, -1)
        seconds: dict[str, list[float]] = {name: [] for name in nets}
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            for k in range(ROUNDS + 1):
                for name, net in nets.items():
                    start = time.perf_counter()
                    net(x, t)
                    if gpu:
                        torch.cuda.synchronize()
                    if k:  # the first is to warm up
                        seconds[name].append(time.perf_counter() - start)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        results.append(
            {
                "pictures": pictures,
                "seconds": medians,
                "frames/s": {name: pictures * FRAMES / value for name, value in medians.items()},
            }
        )
        print(json.dumps(results[-1], indent=1), flush=True)
    about = provenance.about(command=False)
    out.write_text(
        json.dumps({"about": about, "threads": torch.get_num_threads(), "result": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    main(**vars(parser.parse_args()))
