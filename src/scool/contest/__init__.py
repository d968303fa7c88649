"""Contests: every method tuned alike on validation data, then judged once on test data."""
