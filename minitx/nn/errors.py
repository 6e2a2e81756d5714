"""The error of a constructor that refuses its arguments."""


class OptionError(ValueError):
    """An argument is out of range or does not fit the others; the message names the config key to change."""
