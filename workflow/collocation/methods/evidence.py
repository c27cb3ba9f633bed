"""What the methods' evidence has in common."""


class NotInForce(Exception):
    """The method that a cell is about was not in force; the cell fails with this sentence."""
