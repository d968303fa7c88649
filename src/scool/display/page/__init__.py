"""One offline page about runs."""
