"""Environment variables that matter to a measurement, by name."""

import re

OURS = "COLLOCATION_"
# What could change a measurement: settings of CUDA, its libraries, torch, thread pools, allocators,
# the loader, Python.
TELLING = re.compile(
    r"(CUDA|CUBLAS|CUBLASLT|CUDNN|NVIDIA|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|GOMP|KMP|MKL"
    r"|OPENBLAS|BLIS|MALLOC|TCMALLOC|LD)_\w{1,60}"
    r"|GLIBC_TUNABLES|PYTHON(OPTIMIZE|MALLOC|DEVMODE|HASHSEED|_GIL|_JIT)"
)
# Set by the study itself: which device, MPS, how many threads.
OF_THE_STUDY = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_.*|.*_NUM_THREADS|" + OURS + ".*"
)
