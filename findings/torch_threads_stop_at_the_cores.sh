#!/usr/bin/env bash
# OMP_NUM_THREADS is four times the cores of the machine. How many threads does PyTorch use?
# Guess: four times the cores: the variable is obeyed (as by OpenMP itself).
# Seen: as many as the machine has cores, without a word (8 was asked for on two cores: 2).
#   The cut asks the machine, not the job's mask: pinned to one core, the job still gets two
#   threads, though without the variable it takes one. MKL_DYNAMIC=FALSE: 8. So a number that is
#   too high undoes the mask that PyTorch would obey.
# Versions: torch 2.13.0+cpu, two cores of an Intel Xeon, one thread each
# Met by: scripts that export OMP_NUM_THREADS for a whole node, then run jobs on a few cores each;
#   benchmarks of more threads than cores; by MKL's page it counts physical cores, so also
#   OMP_NUM_THREADS=$(nproc) where each core has two hardware threads (not run)
# Source: measured; https://github.com/pytorch/pytorch/issues/60000
set -euo pipefail
python3 -c 'import torch' 2> /dev/null || { echo 'skipped: no torch here'; exit 77; }
python3 -c 'import sys, torch; sys.exit(not torch.backends.mkl.is_available())' ||
  { echo 'skipped: this torch has no MKL'; exit 77; }
for name in ${!OMP_*} ${!GOMP_*} ${!KMP_*} ${!MKL_*}; do unset "$name"; done
cores=$(python3 -c 'import os; print(os.cpu_count())')
[ "$cores" -gt 1 ] || { echo 'skipped: one core only'; exit 77; }
many=$((4 * cores))
threads() {  # pinned or free, then variables
  env "${@:2}" python3 - "$1" << 'END'
import os, sys
if sys.argv[1] == "pinned":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
torch.ones(2000, 2000).exp()
print(torch.get_num_threads())
END
}
python3 -c 'import torch; print("torch", torch.__version__)'
unset_free=$(threads free A=1) unset_pinned=$(threads pinned A=1)
free=$(threads free OMP_NUM_THREADS=$many) pinned=$(threads pinned OMP_NUM_THREADS=$many)
forced=$(threads free OMP_NUM_THREADS=$many MKL_DYNAMIC=FALSE)
echo "$cores cores; OMP_NUM_THREADS unset: $unset_free threads, pinned to one core: $unset_pinned"
echo "OMP_NUM_THREADS=$many: $free threads, pinned: $pinned; and MKL_DYNAMIC=FALSE: $forced"
[ "$free" -le "$cores" ] && [ "$pinned" = "$free" ] && [ "$unset_pinned" = 1 ] &&
  [ "$forced" = $many ] ||
  { echo "changed: no more than the cores, pinned or not, was seen"; exit 1; }
