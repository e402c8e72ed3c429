"""Call a benchmark's function in this process and print its value as JSON: `python -m fedprivjax.bench MODULE NAME`."""

import json
import sys
from importlib import import_module

if __name__ == "__main__":
    module, name, *arguments = sys.argv[1:]
    print(json.dumps(getattr(import_module(module), name)(*arguments)))
