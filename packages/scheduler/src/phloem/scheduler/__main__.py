"""`python -m phloem.scheduler`: see `phloem.scheduler.simulation.cli`."""

import sys

from phloem.scheduler.simulation.cli import main

sys.exit(main())
