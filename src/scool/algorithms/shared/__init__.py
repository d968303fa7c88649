"""Steps that several methods have in common."""
