"""Python imports this when it starts, in the processes that the tests start: see no_network."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
importlib.import_module("no_network").install()
del sys.path[0]
