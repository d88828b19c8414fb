"""The process around training: launcher, cores, devices, environment, logging and seeds."""
