"""From any input to this rank's rows of every update."""
