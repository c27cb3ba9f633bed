#!/usr/bin/env bash
# Two jobs share a TORCHINDUCTOR_CACHE_DIR. The first compiles a function of CPU tensors with one
# thread; the second, the same function, has two. Does it find the compiled code?
# Guess: yes, and it runs the first's code of one thread (55 %).
# Seen: no: the number of threads is in the key, so each number compiles anew; a third job with one
#   thread finds the first's. With TORCHINDUCTOR_CPP_DYNAMIC_THREADS=1 in all, the second finds it.
#   The number need not be set: PyTorch takes it from the job's cores.
# Versions: torch 2.13.0+cpu. By PyTorch's issues the guess was right before (not run).
# Met by: a cache warmed by a job on all cores, then used by jobs on a few cores each
# Source: measured; https://github.com/pytorch/pytorch/issues/167463 and pull request 185049
set -euo pipefail
python3 -c 'import torch' 2> /dev/null || { echo 'skipped: no torch here'; exit 77; }
command -v g++ > /dev/null || { echo 'skipped: no g++ here'; exit 77; }
[ "$(nproc)" -gt 1 ] || { echo 'skipped: one core only'; exit 77; }
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
for name in ${!OMP_*} ${!MKL_*} ${!TORCHINDUCTOR_*}; do unset "$name"; done
cat > "$T/job.py" << 'END'
import torch
from torch._dynamo.utils import counters
def function(a, b):
    return (a * b).exp().sum(1)
torch.compile(function)(torch.randn(1000, 1000), torch.randn(1000, 1000))
print("hit" if counters["inductor"]["fxgraph_cache_hit"] else "miss")
END
job() {  # name of the cache, threads
  TORCHINDUCTOR_CACHE_DIR=$T/$1 OMP_NUM_THREADS=$2 python3 "$T/job.py"
}
python3 -c 'import torch; print("torch", torch.__version__)'
plain="$(job plain 1) $(job plain 2) $(job plain 1)"
export TORCHINDUCTOR_CPP_DYNAMIC_THREADS=1
dynamic="$(job dynamic 1) $(job dynamic 2)"
echo "1, 2 and 1 threads: $plain; with dynamic threads 1 and 2: $dynamic"
[ "$plain; $dynamic" = "miss miss hit; miss hit" ] ||
  { echo "changed: miss miss hit; miss hit was seen"; exit 1; }
