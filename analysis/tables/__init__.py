"""Tables of a merged study."""
