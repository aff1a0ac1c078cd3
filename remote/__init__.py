"""What crosses the wire: one SSH connection, one helper channel, the run directory read by increments."""
