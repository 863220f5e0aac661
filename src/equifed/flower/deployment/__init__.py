"""Running a federation's programs: its folder, credentials and processes."""
