#!/usr/bin/env bash
# Four alike separate processes fill the card. What share of the SMs does NVML say that each uses
# (nvmlDeviceGetProcessUtilization, which nvidia-smi pmon, nvitop and others show)?
# Guess: 25 % for each: time slices are accounted to each process, so a quarter each.
# Seen: not a quarter each. The numbers of a second are fifths or sixths that add up to 100 (40 40 20;
#   50 33 17; with other kernels 20 and 80, or one of the four with 99) and fall differently in the
#   next second; often one or more of the four is left out. It is some five or six looks a second
#   at who is on the card, and each sees one process's time slice.
# Versions: driver 580.159.04, nvidia-ml-py 13, one H200
# Met by: whoever finds out by it which job takes the card, or bills users by it
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
FILL = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
until = time.time() + 9
while time.time() < until:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""
jobs = [subprocess.Popen([sys.executable, "-c", FILL], stdout=subprocess.PIPE) for _ in range(4)]
for job in jobs:
    job.stdout.readline()
time.sleep(1)
largest, seen = [], int(time.time() * 1e6)
for _ in range(5):
    time.sleep(1.1)
    try:
        told = nvml.nvmlDeviceGetProcessUtilization(card, seen)
    except nvml.NVMLError_NotFound:  # nothing new
        continue
    seen = max(its.timeStamp for its in told)
    shares = sorted((its.smUtil for its in told if its.smUtil), reverse=True)
    print("SM % of those named:", *shares)
    largest.append(shares[0] if shares else 0)
for job in jobs:
    job.wait()
if len(largest) < 3 or sum(largest) / len(largest) < 31:
    sys.exit("changed: the largest of a second was 33 to 99, where each has a quarter")
END
