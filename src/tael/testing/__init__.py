# SPDX-License-Identifier: Apache-2.0
"""The conformance suite that every format passes, and the torture checkpoint it is run over. Needs pytest.

from tael.testing import FormatConformance, ReaderConformance

class TestMyFormat(FormatConformance):
    format = MY_FORMAT
"""

from tael.testing.conformance import FormatConformance, ReaderConformance
from tael.testing.torture import torture

__all__ = ["FormatConformance", "ReaderConformance", "torture"]
