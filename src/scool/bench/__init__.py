"""How fast it is here."""
