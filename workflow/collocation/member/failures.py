"""What the text of an error says of its cause."""

_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "alloc_failed",  # of cuBLAS and cuDNN
)


def says_out_of_memory(text: str) -> bool:
    """Whether the text of an error means, beyond doubt, that memory did not suffice."""
    return any(part in text.lower() for part in _OUT_OF_MEMORY)
