"""Environment variables that matter to a measurement, by name."""

import re

OWN_PREFIX = "COLLOCATION_"
# What changes a measurement, and what nobody keeps a secret in: records may hold these values.
# Settings of CUDA, its libraries, torch, thread pools, allocators, the loader, Python.
RECORDED = (
    r"(CUDA|CUBLAS|CUBLASLT|CUDNN|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|GOMP|KMP|MKL"
    r"|OPENBLAS|BLIS|MALLOC|TCMALLOC)_\w{1,60}"
    r"|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES|DRIVER_CAPABILITIES)|LD_(PRELOAD|BIND_NOW)"
    r"|GLIBC_TUNABLES|PYTHON(OPTIMIZE|MALLOC|DEVMODE|HASHSEED|_GIL|_JIT)"
)
# What could change one: names that are told where jobs do not find them, without values.
MAY_MATTER = re.compile(rf"{RECORDED}|(NVIDIA|LD)_\w{{1,60}}")
# Names of secrets; what they hold is never recorded.
SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|SIGNATURE|LICEN[CS]E|CERT", re.IGNORECASE
)
# Set by the study itself: which device, MPS, how many threads.
SET_BY_STUDY = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_.*|.*_NUM_THREADS|" + OWN_PREFIX + ".*"
)
# What a job's environment may have otherwise than Snakemake's; none of it changes an import.
TEMPORARY_FOLDERS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
# Where things are on this machine, which every job finds as they are here.
PASSED = {
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", *TEMPORARY_FOLDERS),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH"),
    *("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "TORCH_HOME", "HF_HOME"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),  # for a container's runtime
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
}
PASSED_PREFIXES = ("LC_", "XDG_", "CONDA_", OWN_PREFIX)


def is_recorded(name: str) -> bool:
    """Whether a record may hold the value that the shell gives this variable; else its name."""
    return bool(re.fullmatch(RECORDED, name)) and not SECRET.search(name)


def is_passed(name: str) -> bool:
    """Whether every job finds this variable as it is here."""
    proxy = name.upper() if name.endswith("_proxy") else name
    return proxy in PASSED or name.startswith(PASSED_PREFIXES)
