"""Run the command line with ``python -m torch_estimator.cli``."""

import sys

from torch_estimator.cli.main import main

sys.exit(main())
