"""Parts that a method states its planned uses and error bounds with, for `fedprivjax plan`."""
