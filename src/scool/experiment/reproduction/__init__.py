"""The paper's table and figures as lists of named runs, and the running of such a list."""
