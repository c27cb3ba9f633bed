#!/usr/bin/env bash
# A job that holds 40 GiB gets SIGKILL, idle or with kernels queued; its parent waits for it
# (waitpid). How long after that does NVML still count the memory as used?
# Guess: separate: not at all. MPS: under 0.1 s if idle, 0.1 to 1 s if busy: the server has to clean
#   up.
# Seen: not at all, in all four: the first reading after waitpid shows it free. It is waitpid that
#   takes up to 0.4 s.
# Not claimed, only printed: how the next client fares that starts at that moment. After a busy
#   client was killed one was refused with "busy or unavailable" (46, not 807 as for a server that
#   recovers), and the daemon's log does not name it.
# Versions: driver 580.159.04, CUDA 13.0, torch 2.11, nvidia-ml-py 13, one H200
# Met by: queues that sleep, or poll the memory, between a killed job and the next
# Source: measured
set -euo pipefail
for tool in nvidia-smi nvidia-cuda-mps-control python3; do
  command -v $tool > /dev/null || { echo "skipped: no $tool here"; exit 77; }
done
nvidia-smi -L > /dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
python3 -c 'import pynvml' 2> /dev/null || { echo 'skipped: no nvidia-ml-py here'; exit 77; }
export CUDA_MPS_PIPE_DIRECTORY=/nowhere
unset CUDA_DEVICE_MAX_CONNECTIONS CUDA_MPS_ACTIVE_THREAD_PERCENTAGE ${!PYTORCH_@}
# The card that CUDA gives first, by its name: an index of NVML may be another card.
card=$(python3 -c 'import torch; print(torch.cuda.get_device_properties(0).uuid)' 2> /dev/null) ||
  { echo "skipped: no torch here, or it sees no card"; exit 77; }
export CUDA_VISIBLE_DEVICES=GPU-${card#GPU-}
ask() { nvidia-smi --id="$CUDA_VISIBLE_DEVICES" --format=csv,noheader,nounits "$@"; }
alone() {  # processes of other containers show only in the memory
  for _ in 1 2 3 4 5 6; do
    others="$(ask --query-compute-apps=pid | xargs)" used=$(ask --query-gpu=memory.used)
    [ -z "$others" ] && [ "$used" -lt 400 ] && return || sleep 1.5
  done
  echo "skipped: others use $CUDA_VISIBLE_DEVICES: $used MiB, processes: ${others:-not named}"
  exit 77
}
ask --query-gpu=name,driver_version,uuid
alone
T=$(mktemp -d)
mkdir "$T/pipe" "$T/log"
export PIPE=$T/pipe CUDA_MPS_LOG_DIRECTORY=$T/log
quit() { echo quit -t 3 | CUDA_MPS_PIPE_DIRECTORY=$PIPE timeout 10 nvidia-cuda-mps-control; }
trap 'quit > /dev/null 2>&1 || :; rm -rf "$T"' EXIT
CUDA_MPS_PIPE_DIRECTORY=$PIPE timeout 10 nvidia-cuda-mps-control -d < /dev/null > /dev/null 2>&1
timeout -k 5 120 python3 - << 'END' || code=$?
import os, signal, subprocess, sys, time
import pynvml as nvml
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
HOLD = """
import sys, torch
print("imported", flush=True)
sys.stdin.readline()
held = torch.zeros(40 << 30, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
a @ a
torch.cuda.synchronize()
print("holds", flush=True)
while sys.argv[1] == "busy":
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
sys.stdin.read()
"""
NEXT = """
import ctypes, sys
cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
sys.stdin.readline()
for call, *words in (("cuInit", 0), ("cuDeviceGet", ctypes.byref(device), 0),
                     ("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)):
    code = getattr(cuda, call)(*words)
    if code:
        break
print(f"{call} said {code}" if code else "context", flush=True)
"""
def start(code, pipe, word=""):
    return subprocess.Popen(
        [sys.executable, "-c", code, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": pipe})
def go(job):
    job.stdin.write("go\n")
    job.stdin.flush()
    return job.stdout.readline().strip()
def used():
    return nvml.nvmlDeviceGetMemoryInfo(card).used / 1e9
cases = [("separate", "idle"), ("separate", "busy"), ("MPS", "idle"), *[("MPS", "busy")] * 3]
pipes = {"separate": "/nowhere", "MPS": os.environ["PIPE"]}
jobs = [start(HOLD, pipes[mode], work) for mode, work in cases]
for job in jobs:
    job.stdout.readline()
changed = False
for (mode, work), job in zip(cases, jobs):
    before = used()
    if go(job) != "holds":
        sys.exit(f"{mode}, {work}: the job could not start, see above")
    after = start(NEXT, pipes[mode])
    time.sleep(0.5)
    held = used() - before
    killed = time.perf_counter()
    os.kill(job.pid, signal.SIGKILL)
    job.wait()  # without a timeout, which would look only every 50 ms
    reaped = time.perf_counter()
    left = used() - before
    read = time.perf_counter()
    fates = [f"{go(after) or 'died'} ({1e3 * (time.perf_counter() - reaped):.0f} ms)"]
    after.wait()
    while not fates[-1].startswith("context") and time.perf_counter() < reaped + 5:
        time.sleep(0.1)
        after = start(NEXT, pipes[mode])
        fates.append(f"{go(after) or 'died'} ({1e3 * (time.perf_counter() - reaped):.0f} ms)")
        after.wait()
    late = used() - before
    print(f"{mode}, {work}: {held:.1f} GB held; reaped {1e3 * (reaped - killed):.0f} ms after the "
          f"kill; {left:.2f} GB left {1e3 * (read - reaped):.1f} ms later, {late:.2f} GB at the "
          f"end; next: {', '.join(fates)}", flush=True)
    changed |= left > 1.5 or held < 40
if changed:
    sys.exit("changed: in the first reading after waitpid the memory was free, in all")
END
grep -hsi 'fatal gpu error' "$T/log/server.log" || echo 'server.log tells of no fatal GPU error'
quit > /dev/null 2>&1 || :
alone  # still: whoever came meanwhile is there
[ "${code:=0}" != 124 ] || { echo "changed: not done within 120 s"; code=1; }
exit $code
