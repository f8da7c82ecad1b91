"""`python -m numbarnn`: the command line."""

import sys

from numbarnn.cli import main

if __name__ == "__main__":
    sys.exit(main())
