"""Storage codes: packed weights in memory, and published formats turned into them. Knows no file and no model."""
