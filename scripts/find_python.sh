#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the command of the first of the wanted Pythons that works here: find_python.sh 3.13 3.14
# Looked for on the PATH, then among pyenv's versions. Prints nothing when there is none.
for version in "$@"; do
    for command in "python$version" $(command -v pyenv >/dev/null && ls -d "$(pyenv root)/versions/$version".*/bin/python 2>/dev/null); do
        if [ "$("$command" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
            echo "$command"
            exit 0
        fi
    done
done
