"""`python -m pathways_command` is the command `pathways`."""

import sys

from pathways_command import main

sys.exit(main())
