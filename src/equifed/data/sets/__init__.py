"""One file per data set: its files, how they are read, and the papers' presets."""
