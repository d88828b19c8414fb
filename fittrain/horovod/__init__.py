"""Horovod, built from its source with fittrain's patches, and what is known about it.

Owns everything about getting Horovod onto a machine. How ranks talk through it is `fittrain.comm`.
Importing this package or any of its modules loads no Horovod, TensorFlow or MPI.

From top to bottom: `build` (the order of events), `compile` (tools, source, patches, wheel),
`install` and `proof`; below them `requirements`, `mpi_library`, `gpu`, `sources`, `patches`,
`wheel_cache`, `features`; at the bottom `commands`, `failures`, `environment`, `progress`.

Example::

    from fittrain.horovod.build import BuildOptions, build
    from fittrain.horovod.features import require_horovod

    build(BuildOptions())
    require_horovod()
"""
