"""Speed, measured as a ratio to a baseline in the same run. See README.md beside this file."""
