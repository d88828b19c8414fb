#!/usr/bin/env bash
# Usage: scripts/run-in.sh ENVIRONMENT COMMAND [ARGUMENT...]
# Run a command with a virtual environment's programs first, as the Makefile's recipes need it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VIRTUAL_ENV=$(pwd -P)/$1
PATH=$VIRTUAL_ENV/bin:$PATH
export VIRTUAL_ENV PATH
shift

# Open MPI refuses root, and more ranks than cores, unless told; other MPI libraries do not look.
if ((EUID == 0)); then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export PRTE_MCA_rmaps_default_mapping_policy=${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}

# Left over from the calling make, these would make an inner `cmake --build` use one core.
unset MAKEFLAGS MAKELEVEL MAKEOVERRIDES MFLAGS
unset PYTHONHOME

exec "$@"
