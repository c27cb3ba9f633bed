#!/usr/bin/env bash
# One process alone on the card, apart or as the only client of an MPS daemon, launches kernels (a
# single thread, 10 ms) on 32 CUDA streams and waits: one on each, or four on each.
# Guess: one on each takes, apart, 4 times as long as on one stream, as 32 streams are spread over 8
#   connections; as a client of MPS, which has 2 connections unless told otherwise, 16 times.
# Seen: once as long (1.04 to 1.08 times), in both. Four on each, too, if they are launched round
#   after round (1.02 times); launched stream after stream they take 12.2 times as long under MPS
#   and 3.3 times apart, and 1.05 times with CUDA_DEVICE_MAX_CONNECTIONS=32. So the order of
#   launches matters, not the number of streams; what raising the connections costs under MPS is
#   told by mps_connections_and_clients.
# Versions: driver 580.159.04, CUDA 13.0, torch 2.11, one H200
# Met by: jobs with many streams under MPS (ensembles, pipelines), which ask for more connections
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
STREAMS = """
import json, sys, time, torch
lanes = [torch.cuda.Stream() for _ in range(32)]
host, card = torch.empty(1 << 14, pin_memory=True), torch.empty(32, 1 << 14, device="cuda")
def seconds(streams, kernels, order, copies):
    launches = [lane for _ in range(kernels) for lane in range(streams)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for lane in sorted(launches) if order == "depth" else launches:
        with torch.cuda.stream(lanes[lane]):
            torch.cuda._sleep(20_000_000)
            if copies:
                card[lane].copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - began
seconds(32, 2, "depth", True)
print("[]", flush=True)
for line in sys.stdin:
    kernels, order, copies = json.loads(line)
    one, eight, all_32 = (min(seconds(streams, kernels, order, copies) for _ in range(2))
                          for streams in (1, 8, 32))
    print(json.dumps([1e3 * one, eight / one, all_32 / one]), flush=True)
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
changed = False
for mode, pipe in (("separate", "/nowhere"), ("MPS", os.environ["PIPE"])):
    for connections in (None, "32"):
        more = {"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {}
        job = start(STREAMS, pipe, **more)
        if mode == "MPS":
            served()
        for kernels, order, copies in (
            (1, "breadth", False), (4, "breadth", False), (4, "depth", False),
            (4, "breadth", True), (4, "depth", True),
        ):
            tell(job, json.dumps([kernels, order, copies]))
            one, eight, all_32 = hear(job)
            print(f"{mode}, connections {connections or 'unset'}, kernels a stream: {kernels}, "
                  f"{order} first, {'with' if copies else 'no'} copies: {one:.1f} ms on one, "
                  f"{eight:.2f} times on 8, {all_32:.2f} times on 32", flush=True)
            if order == "breadth":
                changed |= all_32 > 1.3
            elif connections:
                changed |= all_32 > 1.5
            else:
                changed |= all_32 < (8 if mode == "MPS" else 2)
        end(job)
if changed:
    sys.exit("changed: round after round took once as long, stream after stream 3.3 and 12.2 times")
END
quit > /dev/null 2>&1 || :
alone  # still: whoever came meanwhile is there
[ "${code:=0}" != 124 ] || { echo "changed: not done within 120 s"; code=1; }
exit $code
