#!/usr/bin/env bash
# A small CNN trains alone on the card, each step one CUDA graph. Then other processes make a
# context (torch.zeros(1, device="cuda")) and do nothing more, as a forgotten notebook does.
# Guess: nothing changes (0.97 to 1.03 times), beside one or beside four: there is no work to switch
#   to.
# Seen: the job is faster by 5 % or more beside one. Beside four: printed, not claimed.
# Versions: driver 580.159.04, CUDA 13.0, torch 2.11, one H200
# Met by: whoever compares a job alone with jobs that share: "alone" depends on who only holds a
#   context
# Source: measured
set -euo pipefail
for tool in nvidia-smi python3; do
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
timeout -k 5 120 python3 - << 'END' || code=$?
import json, os, statistics, subprocess, sys, time
import torch  # for the children that are forked; no context is made here
JOB = """
import json, sys, time, torch
from torch import nn
layers = [nn.Conv2d(3, 64, 3, padding=1)]
for _ in range(24):
    layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
model = model.cuda().to(memory_format=torch.channels_last, dtype=torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True)
images = torch.randn(128, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
images = images.contiguous(memory_format=torch.channels_last)
labels = torch.zeros(128, device="cuda", dtype=torch.long)
def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(images).float(), labels).backward()
    optimizer.step()
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(5):
        step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    step()
print("[]", flush=True)
for line in sys.stdin:
    steps, began = 0, time.perf_counter()
    while time.perf_counter() < began + float(line):
        for _ in range(5):
            graph.replay()
        torch.cuda.synchronize()
        steps += 5
    print(json.dumps([steps / (time.perf_counter() - began)]), flush=True)
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
def hold():
    """A process that only holds a context, once it does; it ends itself if nobody ends it."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
            os.write(told, b"1")
            time.sleep(30)
        finally:
            os._exit(1)
    os.close(told)
    if not os.read(ready, 1):
        sys.exit("a process got no context, see above")
    os.close(ready)
    return pid
def rate(job, contexts):
    held = [hold() for _ in range(contexts)]
    time.sleep(0.3)
    tell(job, "1.2")
    time.sleep(0.4)
    query = ["nvidia-smi", "--id=" + os.environ["CUDA_VISIBLE_DEVICES"], "--query-gpu=clocks.sm",
             "--format=csv,noheader,nounits"]
    clock = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    steps, = hear(job)
    for pid in held:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return steps, clock
job = start(JOB)
tell(job, "2")
hear(job)
ratios = {1: [], 4: []}
for turn in range(4):
    seen = {count: rate(job, count) for count in ((0, 1, 4) if turn % 2 == 0 else (4, 1, 0))}
    for count, its in ratios.items():
        its.append(seen[count][0] / seen[0][0])
    print("steps/s (MHz) alone, beside 1, beside 4:",
          *(f"{steps:.1f} ({clock})" for _, (steps, clock) in sorted(seen.items())), flush=True)
end(job)
for count, its in ratios.items():
    print(f"beside {count}, by alone in the same turn:", *(f"{ratio:.3f}" for ratio in its))
if statistics.median(ratios[1]) < 1.05:
    sys.exit("changed: 1.05 times or more was seen beside one process that holds a context")
END
alone  # still: whoever came meanwhile is there
[ "${code:=0}" != 124 ] || { echo "changed: not done within 120 s"; code=1; }
exit $code
