"""Local training of many clients at once, in formulations that give the same result."""
