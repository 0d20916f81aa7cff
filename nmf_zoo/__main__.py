"""``python -m nmf_zoo`` is the command ``nmf-zoo``."""

import sys

from nmf_zoo.interfaces.cli import main

sys.exit(main())
