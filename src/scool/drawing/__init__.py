"""Pictures with matplotlib: colours, sizes and the drawings that several rooms share."""
