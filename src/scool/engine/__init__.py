"""Where clients live and train."""
