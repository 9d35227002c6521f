"""Fixtures that the tests share, and settings of the libraries that they use."""

from hypothesis import settings

pytest_plugins = ["pytester"]

# No test fails for being slow. (On a build server hypothesis itself also stops being random.)
settings.register_profile("workbook", parent=settings(), deadline=None)
settings.load_profile("workbook")
