"""Entry point of ``python -m torch_estimator.cli``, which is the same as the command ``estimator``."""

import sys

from torch_estimator.cli.main import main

sys.exit(main())
