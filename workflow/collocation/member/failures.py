"""What the text of an error says of its cause."""

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "alloc_failed",  # of cuBLAS and cuDNN
)
# Under MPS these end all clients, and the server may be well again when the first of them exits.
_SERVER_FAULT = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "invalid program counter",
    "hardware stack error",
    "unspecified launch failure",
    "device-side assert",
    "uncorrectable ecc",
    "execution_failed",  # of cuBLAS and cuDNN
    "mps server",
    "mps client",
)
_TOO_MANY_CLIENTS = "resources required to create mps client have been exhausted"
_REFUSED = "mps server is not ready"


def says_out_of_memory(text: str) -> bool:
    """Whether the text of an error means, beyond doubt, that memory did not suffice."""
    return any(part in text.lower() for part in _OUT_OF_MEMORY)


def says_server_fault(text: str) -> bool:
    """Whether the text of an MPS client's error means that other clients may have failed, too."""
    words = text.lower().replace(_TOO_MANY_CLIENTS, "")
    return any(part in words for part in _SERVER_FAULT)


def says_refused(text: str) -> bool:
    """Whether the text is of a client that came while the MPS server was at fault already."""
    return _REFUSED in text.lower()
