"""Other ways in: the command line and its tables, PyMC step methods, the demo."""
