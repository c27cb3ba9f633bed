#!/usr/bin/env bash
# A job copies 1 MB to the card, or reads a number back (loss.item(), 4 bytes), and waits for it,
# while a neighbour copies 1 GB again and again in the same direction, in one piece or in 256 of 4
# MB.
# Guess: separate processes: 1.5 to 6 ms, as the copy engine is switched between them every 2 ms, in
#   pieces or not. Under MPS over 6 ms, the rest of the neighbour's copy of 18 ms; if that comes in
#   pieces of 4 MB, the length of one, 0.06 to 0.3 ms. (Of the copy; the number was not asked.)
# Seen: about 1.0 ms in the median, separate and under MPS, in one piece or in pieces; 0.03 ms and
#   0.015 ms (the number) alone. So a step that reads its loss takes 1 ms longer beside a job that
#   moves much to the host, and MPS does not help. What helps: a neighbour that waits for each of
#   its pieces (0.09 and 0.05 ms, not claimed). The other direction is hardly slower.
# Versions: driver 580.159.04, CUDA 13.0, torch 2.11, one H200
# Met by: short steps with loss.item() beside offloading or checkpoints, and with inputs copied
#   beside a job that streams its own
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
import json, os, subprocess, sys, time
SMALL = """
import json, statistics, sys, time, torch
host = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
card, loss = torch.empty_like(host, device="cuda"), torch.zeros((), device="cuda")
def both():
    start = time.perf_counter()
    card.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    copied = time.perf_counter()
    loss.item()
    return 1e3 * (copied - start), 1e3 * (time.perf_counter() - copied)
both()
print("[]", flush=True)
for line in sys.stdin:
    waits, until = [], time.time() + float(line)
    while time.time() < until:
        waits.append(both())
    print(json.dumps([statistics.median(each) for each in zip(*waits)]), flush=True)
"""
LARGE = """
import json, sys, time, torch
size = 1 << 30
host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
card = torch.empty_like(host, device="cuda")
print("[]", flush=True)
for line in sys.stdin:
    to, source = (card, host) if line.startswith("in") else (host, card)
    part, between = (int(word) << 20 for word in line.split()[1:3])
    moved, began = 0, time.time()
    while time.time() < began + float(line.split()[3]):
        for at in range(0, size, part):
            to[at:at + part].copy_(source[at:at + part], non_blocking=True)
            if (at + part) % between == 0:
                torch.cuda.synchronize()
        moved += size
    print(json.dumps([round(moved / (time.time() - began) / 1e9)]), flush=True)
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
changed = []
for mode, pipe in (("separate", "/nowhere"), ("MPS", os.environ["PIPE"])):
    small = start(SMALL, pipe)
    tell(small, "0.6")
    copy, number = hear(small)
    print(f"{mode}, alone: 1 MB in {copy:.3f} ms, a number out {number:.3f} ms", flush=True)
    large = start(LARGE, pipe)
    if mode == "MPS":
        served()
    for direction in ("in", "out"):
        for part, between in ((1024, 1024), (4, 1024), (4, 4)):
            tell(large, f"{direction} {part} {between} 1.4")
            time.sleep(0.2)
            tell(small, "0.9")
            copy, number = hear(small)
            print(f"{mode}, the neighbour copies {direction}, {part} MB a copy, waits each "
                  f"{between} MB, {hear(large)[0]} GB/s: 1 MB in {copy:.3f} ms, "
                  f"a number out {number:.3f} ms", flush=True)
            wait = copy if direction == "in" else number
            # Not claimed: pieces that are waited for one by one, and pieces on the way out.
            if (direction, part) in (("in", 1024), ("out", 1024), ("in", 4)) and between == 1024:
                changed += [] if 0.5 <= wait <= 2 else [wait]
    end(small), end(large)
if changed:
    sys.exit("changed: about 1 ms was seen beside copies in the same direction, in all")
END
quit > /dev/null 2>&1 || :
alone  # still: whoever came meanwhile is there
[ "${code:=0}" != 124 ] || { echo "changed: not done within 120 s"; code=1; }
exit $code
