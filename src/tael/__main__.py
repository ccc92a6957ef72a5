# SPDX-License-Identifier: Apache-2.0
"""`python -m tael` is the `tael` command."""

import sys

from tael.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
