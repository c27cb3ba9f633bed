"""`collocate` and `python -m collocate`."""

import sys

from collocate.app import main

if __name__ == "__main__":
    sys.exit(main())
