"""The contract of every protocol, for one of your own, too."""
