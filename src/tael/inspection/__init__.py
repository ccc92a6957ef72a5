# SPDX-License-Identifier: Apache-2.0
"""Looking inside: what a checkpoint holds (summary.py, from its header) and what its numbers are like (stats.py)."""
