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
_SERVER_FAULT = ("illegal memory access", "unspecified launch failure", "mps server", "mps client")


def says_out_of_memory(text: str) -> bool:
    """Whether the text of an error means, beyond doubt, that memory did not suffice."""
    return any(part in text.lower() for part in _OUT_OF_MEMORY)


def says_server_fault(text: str) -> bool:
    """Whether the text of an MPS client's error means that other clients may have failed, too."""
    return any(part in text.lower() for part in _SERVER_FAULT)
