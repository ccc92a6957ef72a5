# SPDX-License-Identifier: Apache-2.0
"""`python -m tael` is the `tael` command."""

import sys

if __name__ == "__main__":
    try:
        from tael.cli.app import main
    except KeyboardInterrupt:  # from here on `main` answers for it
        sys.stderr.write("tael: interrupted\n")
        sys.exit(130)
    sys.exit(main())
