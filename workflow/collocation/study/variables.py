"""Which environment variables may change a measurement, may be recorded, or reach jobs."""

import re

OWN_PREFIX = "COLLOCATION_"
# Settings of CUDA, its libraries, torch, thread pools, allocators, the loader and Python. They may
# change a measurement and hold no secrets, so records may hold their values.
RECORDED = (
    r"(CUDA|CUBLAS|CUBLASLT|CUDNN|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|GOMP|KMP|MKL"
    r"|OPENBLAS|BLIS|MALLOC|TCMALLOC)_\w{1,60}"
    r"|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES|DRIVER_CAPABILITIES)|LD_(PRELOAD|BIND_NOW)"
    r"|GLIBC_TUNABLES|PYTHON(OPTIMIZE|MALLOC|DEVMODE|HASHSEED|_GIL|_JIT)"
)
# These could change a measurement too. Their names are printed where jobs do not get them.
MAY_MATTER = re.compile(rf"{RECORDED}|(NVIDIA|LD)_\w{{1,60}}")
# Names of secrets, whose values are never recorded.
SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|SIGNATURE|LICEN[CS]E|CERT", re.IGNORECASE
)
# The study sets these itself: the device, MPS, the number of threads.
SET_BY_STUDY = re.compile(
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_MPS_.*|.*_NUM_THREADS|" + OWN_PREFIX + ".*"
)
# A job's environment may differ from Snakemake's in these; none of them changes an import.
TEMPORARY_FOLDERS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")
# Where things are on this machine. Every job gets these unchanged.
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
    """Whether a record may hold the value of this variable; otherwise it holds the name alone."""
    return bool(re.fullmatch(RECORDED, name)) and not SECRET.search(name)


def is_passed(name: str) -> bool:
    """Whether every job gets this variable unchanged."""
    if name.endswith("_proxy"):
        name = name.upper()
    return name in PASSED or name.startswith(PASSED_PREFIXES)
