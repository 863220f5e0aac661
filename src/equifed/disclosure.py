"""From how many rows on a count, a value or a range may be told to others."""

MIN_COUNT = 10
"""The usual limit, of schemas and of evaluations: what fewer rows have in common stays where the rows are."""
