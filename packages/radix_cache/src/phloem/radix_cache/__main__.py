"""`python -m phloem.radix_cache analyze`: see `phloem.radix_cache.analysis.cli`."""

import sys

from .analysis.cli import main

sys.exit(main())
