#!/usr/bin/env bash
# NVML's GPM has metrics of the context switches of the engine (GR0_CTXSW_…, 170 to 174). Two separate
# processes fill the card, so it is switched between them some 400 times a second.
# Guess: some 400 switches a second and some per cent of the time: counters count what they are
#   named after.
# Seen: all five read 0.0 and say success, with one process and with two (as with four, and under MPS).
#   In the same pair of samples SM activity is right. So 0 there is no proof of no time slices.
# Versions: driver 580.159.04, nvidia-ml-py 13, one H200
# Met by: monitors that want to tell a card shared by time slices from one under MPS
# Source: measured
set -euo pipefail
for tool in nvidia-smi nvidia-cuda-mps-control python3; do
  command -v $tool > /dev/null || { echo "skipped: no $tool here"; exit 77; }
done
nvidia-smi -L > /dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
python3 -c 'import pynvml' 2> /dev/null || { echo 'skipped: no nvidia-ml-py here'; exit 77; }
python3 -c 'import torch' 2> /dev/null || { echo 'skipped: no torch here'; exit 77; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
export CUDA_MPS_PIPE_DIRECTORY=/nowhere
python3 - << 'END'
import subprocess, sys, time
import pynvml as nvml
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
if not nvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice:
    print("skipped: this card has no GPM")
    sys.exit(77)
FILL = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
until = time.time() + 5
while time.time() < until:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""
def read():
    ids, pair = [nvml.NVML_GPM_METRIC_SM_UTIL, *range(170, 175)], []
    for _ in range(2):
        pair.append(nvml.nvmlGpmSampleAlloc())
        nvml.nvmlGpmSampleGet(card, pair[-1])
        time.sleep(1)
    asked = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION)
    asked.numMetrics, (asked.sample1, asked.sample2) = len(ids), pair
    for metric, its in zip(asked.metrics, ids):
        metric.metricId = its
    nvml.nvmlGpmMetricsGet(asked)
    return [(m.nvmlReturn, round(m.value, 2)) for m in asked.metrics[: len(ids)]]
changed = False
for count in (1, 2):
    fill = [sys.executable, "-c", FILL]
    jobs = [subprocess.Popen(fill, stdout=subprocess.PIPE) for _ in range(count)]
    for job in jobs:
        job.stdout.readline()
    time.sleep(1)
    sm, *switches = read()
    print(f"{count} processes: SM activity {sm[1]} %, (code, value) of 170 to 174: {switches}")
    changed |= sm[1] < 50 or any(switch != (0, 0.0) for switch in switches)
    for job in jobs:
        job.wait()
if changed:
    sys.exit("changed: success and 0.0 in all five were seen")
END
