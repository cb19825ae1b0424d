"""One self-contained page: sections rendered by Jinja2 with autoescape, styles and script inside, nothing asked of any network.

The content security policy names the hash of the one style and the one script, and forbids everything else, so that markup
which slipped through the escaping would still not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloison.errors import StoreError
from cloison.places import on_disk
from cloison.view import version
from cloison.view.output_option import refuse_existing

__all__ = ["environment", "render_page", "write_page"]


def _asset(name: str) -> str:
    return (files("cloison.view") / "assets" / name).read_text(encoding="utf-8")


@cache
def environment() -> Any:
    """Return the Jinja2 environment of pages: templates of ``assets``, everything escaped, an unknown name an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("cloison.view", "assets")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def render_page(title: str, subtitle: str, sections: Sequence[Mapping[str, Any]], data: Any = None) -> str:
    """Return the HTML of a page.

    Args:
        title: plain text.
        subtitle: plain text.
        sections: each with ``id``, ``title``, ``template`` (a file of ``assets``), and what that template reads.
        data: plain data for the script (blocks), or None.

    Everything is escaped; ``data`` travels as JSON in which ``<``, ``>`` and ``&`` cannot occur.
    """
    from markupsafe import Markup

    style, script = _asset("style.css"), _asset("script.js")
    packed = None
    if data is not None:
        packed = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        for mark, code in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
            packed = packed.replace(mark, code)
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}; img-src data:"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    return str(
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            subtitle=subtitle,
            sections=sections,
            style=Markup(style),
            script=Markup(script),
            data=None if packed is None else Markup(packed),
            policy=Markup(policy),
            version=version(),
        )
    )


def write_page(html: str, path: str | os.PathLike[str], *, replace: bool = False) -> Path:
    """Write ``html`` to ``path`` and return it; the file is there whole or not at all.

    Raises:
        InputError: the file exists and ``replace`` is not set.
        StoreError: the folder cannot be written.
    """
    target = on_disk(path, "a page")
    refuse_existing(target, replace=replace)
    draft = target.with_name(f".{target.name}.part")
    try:
        draft.write_text(html, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StoreError(f"a page was to be written to {target}.", f"{error}.", "Name a folder that can be written.") from error
    return target
