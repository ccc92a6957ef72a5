# SPDX-License-Identifier: Apache-2.0
"""`python -m tael` is the `tael` command."""

from tael.cli.app import main

if __name__ == "__main__":
    main()
