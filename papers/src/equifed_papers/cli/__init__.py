"""The commands `equifed reproduce` and `equifed benchmark`; pyproject.toml names them as entry points."""
