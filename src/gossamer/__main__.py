"""`python -m gossamer` is the `gossamer` command."""

import sys

from gossamer.cli import main

sys.exit(main())
