"""Types with which a method declares its planned uses and error bounds, for `fedprivjax plan`."""
