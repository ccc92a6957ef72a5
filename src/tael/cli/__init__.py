# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, each of which parses, calls the library and prints. No logic lives here."""
