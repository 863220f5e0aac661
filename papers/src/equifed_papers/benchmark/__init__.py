"""The benchmark: every method on many federations with one budget of settings each, its records, scores and page."""
