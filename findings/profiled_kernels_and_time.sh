#!/usr/bin/env bash
# A job of products (4096^3, bf16) is traced by torch.profiler (CUPTI) beside a neighbour that fills
# the card with the same. What do the lengths of its kernels, and their sum by wall time, say of the
# waiting?
# Guess: separate: the median as alone, the sum about all of the wall time, as a kernel that is cut
#   by a switch holds the neighbour's turn in its length. MPS: the median twice, the sum about all
#   as well.
# Seen: separate: all kernels are as long as alone, to the longest, and their sum is 0.45 of the
#   wall time, half of what it is alone. MPS: the median is 1.33 to 1.35 times, none is longer than
#   1.4 times, and the sum 0.63 of the wall time, though the job runs at half its rate. Either way
#   most of the waiting lies between kernels, where it looks like a job that waits for its host.
# Versions: driver 580.159.04, CUDA 13.0, torch 2.11, one H200
# Met by: whoever looks in a trace for why a job on a shared card is slow: its kernels hardly are
# Source: measured
set -euo pipefail
for tool in nvidia-smi nvidia-cuda-mps-control python3; do
  command -v $tool > /dev/null || { echo "skipped: no $tool here"; exit 77; }
done
nvidia-smi -L > /dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
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
import json, os, subprocess, sys
TRACED = """
import json, statistics, sys, time, torch
from torch.profiler import ProfilerActivity, profile
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def trace(seconds):
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        launched, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for _ in range(10):
                a @ a
            torch.cuda.synchronize()
            launched += 10
        rate = launched / (time.perf_counter() - began)
    profiled.export_chrome_trace(sys.argv[1])
    with open(sys.argv[1]) as file:
        events = json.load(file)["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    lengths = sorted(event["dur"] / 1e3 for event in kernels)
    if not lengths:
        return {"launched": launched, "kernels": 0}
    ended = max(event["ts"] + event["dur"] for event in kernels)
    wall = ended - min(event["ts"] for event in kernels)
    return {"kernels/s": round(rate), "launched": launched, "kernels": len(lengths),
            "median": statistics.median(lengths), "mean": statistics.mean(lengths),
            "p90": lengths[len(lengths) * 9 // 10], "longest": lengths[-1],
            "sum by wall time": 1e3 * sum(lengths) / wall}
trace(0.3)
print("[]", flush=True)
for line in sys.stdin:
    print(json.dumps(trace(float(line))), flush=True)
"""
FILL = """
import select, sys, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
a @ a
torch.cuda.synchronize()
print("[]", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
"""
def start(code, pipe="/nowhere", *words, **more):
    """A process, once it is ready; each line told to it is answered by one of JSON."""
    job = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": pipe} | more)
    hear(job)
    return job
def tell(job, words):
    job.stdin.write(words + "\n")
    job.stdin.flush()
def hear(job):
    for line in job.stdout:  # libraries may print there, too
        if line.startswith(("{", "[")):
            return json.loads(line)
    sys.exit("a process ended without an answer, see above")
def end(job):
    job.stdin.close()
    job.wait()
def served():  # a client that finds no daemon goes on without it, and says nothing
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": os.environ["PIPE"]}
    asked = subprocess.run(["nvidia-cuda-mps-control"], input="get_server_list\n", timeout=10,
                           text=True, capture_output=True, env=environment)
    return asked.stdout.strip().isdigit() or sys.exit("no MPS server came up")
def show(words, seen):
    print(words, *(f"{name} {value:.3f}" if isinstance(value, float) else f"{name} {value}"
                   for name, value in seen.items()), sep=", ", flush=True)
    return seen if seen["kernels"] else sys.exit("changed: the trace holds no kernels")
changed = False
for mode, pipe in (("separate", "/nowhere"), ("MPS", os.environ["PIPE"])):
    job = start(TRACED, pipe, os.path.dirname(os.environ["PIPE"]) + "/trace.json")
    if mode == "MPS":
        served()
    tell(job, "0.6")
    alone = show(mode + ", alone (ms)", hear(job))
    neighbour = start(FILL, pipe)
    tell(job, "0.8")
    beside = show(mode + ", beside one that fills the card (ms)", hear(job))
    end(job), end(neighbour)
    times = {name: beside[name] / alone[name]
             for name in ("median", "mean", "p90", "longest", "sum by wall time")}
    print(f"{mode}, times alone", *(f"{name} {ratio:.2f}" for name, ratio in times.items()),
          sep=", ", flush=True)
    least, most = (0.9, 1.1) if mode == "separate" else (1.15, 1.5)
    changed |= not least <= times["median"] <= most or times["longest"] > most
    changed |= times["sum by wall time"] > 0.8
if changed:
    sys.exit("changed: kernels were as long as alone, under MPS 1.3 times; their sum fell")
END
quit > /dev/null 2>&1 || :
alone  # still: whoever came meanwhile is there
[ "${code:=0}" != 124 ] || { echo "changed: not done within 120 s"; code=1; }
exit $code
