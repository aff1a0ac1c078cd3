"""What the link costs: round trips, seconds, bytes."""
