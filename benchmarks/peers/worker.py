"""Worker process: ``python worker.py NAME MODEL_DIRECTORY`` serves the sweep of ``worker_NAME.py``.

The real stdout is reserved before any library is imported, because some print on import.
"""

import importlib
import sys
from pathlib import Path

from protocol import private_stdout, serve

if __name__ == "__main__":
    answers = private_stdout()
    serve(importlib.import_module(f"worker_{sys.argv[1]}"), Path(sys.argv[2]), answers)
