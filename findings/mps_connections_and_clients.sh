#!/usr/bin/env bash
# Eight small jobs start under MPS, each with CUDA_DEVICE_MAX_CONNECTIONS=32, the most there is.
# Guess: three succeed, and the others are told that MPS has no connections left (error 809).
# Seen: three get a context. The others fail with "out of memory" or "device busy or unavailable" on
#   an empty card: clients draw their connections from one pool of the card (with 8 each, 15 got a
#   context; unset, a client has 2, and all eight run).
# Versions: driver 580.159.04, CUDA 13.0, one H200
# Met by: whoever raises the connections so that graphs with branches or many streams overlap, and
#   then puts such jobs into a set: it reads as a lack of memory
# Source: measured; NVIDIA's MPS guide says that the number of clients depends on it
set -euo pipefail
for tool in nvcc nvidia-smi nvidia-cuda-mps-control; do
  command -v $tool > /dev/null || { echo "skipped: no $tool here"; exit 77; }
done
nvidia-smi -L > /dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
T=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY=$T/pipe CUDA_MPS_LOG_DIRECTORY=$T/log
trap 'echo quit -t 3 | nvidia-cuda-mps-control > /dev/null 2>&1 || :; rm -rf "$T"' EXIT
mkdir "$T/pipe" "$T/log"
cd "$T"
cat > hold.cu << 'END'
#include <cstdio>
#include <unistd.h>
#include <cuda_runtime.h>
int main() {
  cudaError_t error = cudaFree(0);
  puts(error ? cudaGetErrorName(error) : "context");
  fflush(stdout);
  if (!error) sleep(6);
}
END
nvcc -arch=native -o hold hold.cu
nvidia-cuda-mps-control -d
eight() {  # at once, and what each said
  for job in 1 2 3 4 5 6 7 8; do ./hold > said$job & done
  wait $(jobs -p)
  cat said? | sort | uniq -c | tee said
  count=$(awk '$2 == "context" { n = $1 } END { print n + 0 }' said)
}
unset CUDA_DEVICE_MAX_CONNECTIONS
echo "connections unset:"; eight; unset_count=$count
export CUDA_DEVICE_MAX_CONNECTIONS=32
echo "32 connections each:"; eight
nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader
[ "$unset_count" = 8 ] && [ "$count" -ge 1 ] && [ "$count" -le 4 ] ||
  { echo "changed: 8 and 3 of 8 clients were seen"; exit 1; }
