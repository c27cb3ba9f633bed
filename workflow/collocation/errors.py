"""What a person can have got wrong."""


class ConfigError(Exception):
    """A mistake in a config file, as one line for the person who wrote it."""
