"""The error of a constructor that refuses its arguments, and the check that raises it."""


class OptionError(ValueError):
    """An argument is out of range or does not fit the others; the message names the config key to change."""


def require(condition: bool, message: str) -> None:
    """Raise OptionError with this message unless the condition holds."""
    if not condition:
        raise OptionError(message)
