"""`python -m equifed` is the command line."""

from equifed.cli import main

main()
