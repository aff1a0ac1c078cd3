"""What the console costs its operator: the time until it is there, the time of a key, processor, bytes, memory."""
