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
# What a job's environment may have otherwise than Snakemake's; none of it changes an import.
APART = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
# Where things are on this machine, which every job finds as they are here.
PASSED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", *APART),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH"),
    *("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "TORCH_HOME", "HF_HOME"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),  # for a container's runtime
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
}
FAMILIES = ("LC_", "XDG_", "CONDA_", OURS)


def passes(name: str) -> bool:
    """Whether every job finds this variable as it is here."""
    proxy = name.upper() if name.endswith("_proxy") else name
    return proxy in PASSED or name.startswith(FAMILIES)
