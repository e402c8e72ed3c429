"""What bad input gets: an exception of its own, so that any other exception is a bug and looks like one."""


class Refusal(ValueError):
    """Settings or data that cannot be used: one line with the name, what was expected, and what was given.

    Raised before anything is compiled. The command line prints the line and exits with status 2.
    """

    __module__ = "fedprivjax"  # the name that users import it by
