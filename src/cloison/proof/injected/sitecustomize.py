"""Python runs this at its start where its folder is on PYTHONPATH, as ``cloison audit`` puts it for the audited command."""

import os
import sys


def _hidden() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


_hidden()
if os.environ.get("CLOISON_AUDIT_REPORT"):
    try:
        from cloison.proof.injection import install
    except ImportError as error:
        with open(os.environ["CLOISON_AUDIT_REPORT"] + ".missing", "w") as marker:
            marker.write(f"{sys.executable}: {error}")
    else:
        install()
