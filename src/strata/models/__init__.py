"""Model families in plain torch: one family is one file, its maths are in blocks/, its state in mixers/."""
