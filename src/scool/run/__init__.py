"""One run, from options to a result: prepared, looped, recorded, resumed."""
