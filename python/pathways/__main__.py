"""`python -m pathways` is the command `pathways`."""

import sys

from pathways.cli import main

sys.exit(main())
