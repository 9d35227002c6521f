"""Fixtures that the tests share."""

pytest_plugins = ["pytester"]
