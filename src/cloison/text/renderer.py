"""The renderer: a small program that renders chat templates for its parent, fenced in, and can be killed.

It is started by `cloison.text.sandbox` as a file of its own and imports the standard library and jinja2 only, so that it
starts fast and holds nothing worth reaching: no open files but its pipes, no secrets in its environment, limits on memory,
CPU and files. Requests and answers are frames: four bytes of length (little endian), then JSON.

    first    {"templates": {name: text}, "variables": {...}, "date": "YYYY-MM-DD", "seconds": s, "characters": n, "bytes": n}
    request  {"records": [[name, messages, tools, documents, options], ...], "marked": bool, "flush": n}
    answers  [[text, null] or [null, error], ...]: frames of at most ``flush`` results, in order, until all are answered
    request  {"tags": name}: the strings that this template compares, finds or splits texts by
    answer   [tag, ...]

The environment does what ``transformers.utils.chat_template_utils`` (5.24) describes: an immutable sandbox, trimmed blocks,
loop controls, the ``generation`` tag, ``raise_exception``, ``strftime_now``, and a ``tojson`` that escapes no HTML.
What draws at random (``random``, ``lipsum``) is left out.

A *marked* rendering writes, between `MARK_OPEN` and `MARK_CLOSE`, where each iteration over the messages begins (``L3.0``: the
loop numbered 3 came to message 0), where a loop is left (``E3``), and the edges of generation blocks (``G1``, ``G0``).
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO

from jinja2 import exceptions, nodes, pass_eval_context
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as loop_controls
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MARK_OPEN, MARK_CLOSE = "\U0010fde0", "\U0010fde1"
"""What brackets a mark: private-use characters; records that hold them are refused before they come here."""


class OutOfTime(BaseException):
    """The alarm rang. A BaseException, so that nothing between the template and us can swallow it."""


class Generation(Extension):
    """The ``{% generation %}`` block: its body, in a scope of its own; a marked rendering shows its edges."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        """Return the body as a call block, which is what decides what a ``set`` inside it can reach."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _render(self, context: Any, caller: Callable[[], str]) -> str:
        body = caller()
        marked = "_mark" in self.environment.globals
        return f"{MARK_OPEN}G1{MARK_CLOSE}{body}{MARK_OPEN}G0{MARK_CLOSE}" if marked else body


class TemplateDict:
    """``dict`` for templates: it builds dictionaries and offers no way to the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a new dictionary."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Return a dictionary with the given keys."""
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(Namespace):
    """``namespace`` for templates: names that begin with an underscore cannot be stored."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no named self: a template may store that name
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        """Store ``value``, unless the name begins with an underscore."""
        _refuse_underscore(name)
        Namespace.__setitem__(self, name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise exceptions.SecurityError(f"a namespace cannot hold {name!r}: the name begins with an underscore")


def _raise_exception(message: str) -> None:
    raise exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment(date: str) -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment of chat templates, in which today is ``date``."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loop_controls])
    today = datetime.fromisoformat(date)
    env.filters["tojson"] = _tojson
    del env.filters["random"], env.globals["lipsum"]  # the same record is to give the same text
    env.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: today.strftime(form),
        "dict": TemplateDict(),
        "namespace": TemplateNamespace,
    }
    return env


# ---------------------------------------------------------------------- marked renderings


class Marker:
    """What writes the marks while a template runs: it knows the messages by identity."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._found: set[int] = set()

    def watch(self, messages: list[Any]) -> None:
        """Know these messages from now on, and no others."""
        self._places = {id(message): place for place, message in enumerate(messages)}
        self._found = set()

    def loop(self, number: int, items: list[Any]) -> str:
        """Return the mark of an iteration: of the message among its loop variables, or nothing."""
        for item in items:
            if isinstance(item, dict) and id(item) in self._places:
                self._found.add(number)
                return f"{MARK_OPEN}L{number}.{self._places[id(item)]}{MARK_CLOSE}"
        self._found.discard(number)
        return ""

    def assign(self, number: int, items: list[Any]) -> str:
        """Return the mark of a ``set`` in a loop over indices: the first message that is set is the one of the iteration."""
        return "" if number in self._found else self.loop(number, items)

    def end(self, number: int) -> str:
        """Return the mark of having left a loop."""
        return f"{MARK_OPEN}E{number}{MARK_CLOSE}"


def _marked(tree: nodes.Template) -> nodes.Template:
    """Return the syntax tree with a mark at the head of every loop body, behind a ``set`` in one, and behind every loop."""
    count = 0

    def call(method: str, number: int, names: list[nodes.Name] | None, line: int) -> nodes.Output:
        arguments: list[nodes.Expr] = [nodes.Const(number)]
        if names is not None:
            arguments.append(nodes.List([nodes.Name(name.name, "load") for name in names]))
        function = nodes.Getattr(nodes.Name("_mark", "load"), method, "load")
        output = nodes.Output([nodes.Call(function, arguments, [], None, None)])
        return output.set_lineno(line, override=True)  # type: ignore[return-value]

    def names(target: nodes.Node) -> list[nodes.Name]:
        return [target] if isinstance(target, nodes.Name) else list(target.find_all(nodes.Name))

    def visit(node: nodes.Node, loop: int | None) -> list[nodes.Node]:
        nonlocal count
        inner = loop
        if isinstance(node, nodes.For):
            inner = count = count + 1
        for _, value in node.iter_fields():
            if isinstance(value, list):
                value[:] = [
                    grown for child in value for grown in (visit(child, inner) if isinstance(child, nodes.Node) else [child])
                ]
            elif isinstance(value, nodes.Node):
                visit(value, inner)
        if isinstance(node, nodes.For):
            assert inner is not None
            node.body.insert(0, call("loop", inner, names(node.target), node.lineno))
            return [node, call("end", inner, None, node.lineno)]
        if isinstance(node, nodes.Assign) and loop is not None and isinstance(node.target, nodes.Name):
            return [node, call("assign", loop, [node.target], node.lineno)]
        return [node]

    for child in (tree,):
        visit(child, None)
    return tree


_LOOKS = frozenset(
    ("split rsplit startswith endswith find rfind index partition rpartition replace removeprefix removesuffix count").split()  # noqa: SIM905
)


def tags(source: str) -> list[str]:
    """Return the strings of a template that it looks for in texts: operands of ``in``, arguments of ``split`` and its like."""
    tree = environment("2000-01-01").parse(source)
    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops) and isinstance(compare.expr, nodes.Const):
            found.add(compare.expr.value)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _LOOKS:
            constants = [node for argument in call.args for node in [argument, *argument.find_all(nodes.Const)]]
            found |= {node.value for node in constants if isinstance(node, nodes.Const) and isinstance(node.value, str)}
    # Plain words are names of fields, as in ``'tool_calls' in message``.
    return sorted(tag for tag in found if isinstance(tag, str) and len(tag.strip()) >= 3 and not tag.isidentifier())


# ---------------------------------------------------------------------- the program


class Renderer:
    """The templates of one tokenizer, compiled when first used, plain and marked."""

    def __init__(self, templates: dict[str, str], variables: dict[str, Any], date: str) -> None:
        self._templates = templates
        self._variables = variables
        self._date = date
        self._compiled: dict[tuple[str, bool], Any] = {}
        self._marker = Marker()

    def _compile(self, name: str, marked: bool) -> Any:
        if (name, marked) not in self._compiled:
            env = environment(self._date)
            source: Any = self._templates[name]
            if marked:
                source = _marked(env.parse(source))
                env.globals["_mark"] = self._marker
            self._compiled[name, marked] = env.from_string(source)
        return self._compiled[name, marked]

    def render(self, record: list[Any], marked: bool) -> str:
        """Return the rendering of a record [name, messages, tools, documents, options]; raises what the template raises."""
        name, messages, tools, documents, options = record
        template = self._compile(name, marked)
        if marked:
            self._marker.watch(messages)
        variables = {"add_generation_prompt": False, **self._variables, **options}
        return str(template.render(messages=messages, tools=tools, documents=documents, **variables))


def _fence(limit_bytes: int) -> None:
    with contextlib.suppress(ImportError):
        import resource

        for name, value in (("RLIMIT_AS", limit_bytes), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0), ("RLIMIT_NPROC", 0)):
            with contextlib.suppress(ValueError, OSError, AttributeError):
                kind = getattr(resource, name)
                hard = resource.getrlimit(kind)[1]
                least = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(kind, (least, least))


def _more_cpu(seconds: float) -> None:
    """Let the process use that much more CPU and then be killed, so that one whose parent died cannot run on for ever."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))


def read_frame(pipe: BinaryIO) -> Any:
    """Return what the next frame holds, or None at the end of the pipe."""
    head = pipe.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "little")
    body = pipe.read(size)
    return json.loads(body) if len(body) == size else None


def write_frame(pipe: BinaryIO, value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write ``value`` as one frame."""
    body = json.dumps(value, separators=(",", ":"), default=default).encode("ascii")
    pipe.write(len(body).to_bytes(4, "little") + body)
    pipe.flush()


def main() -> None:
    """Serve requests until the pipe ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setting = read_frame(source)
    if setting is None:
        return
    renderer = Renderer(setting["templates"], setting["variables"], setting["date"])
    seconds, characters = float(setting["seconds"]), int(setting["characters"])
    alarm = hasattr(signal, "setitimer")
    if alarm:

        def ring(number: int, frame: Any) -> None:
            raise OutOfTime

        signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _fence(int(setting["bytes"]))

    def answer(record: list[Any], marked: bool) -> list[str | None]:
        try:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, seconds)
            text = renderer.render(record, marked)
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except OutOfTime:
            return [None, f"it ran for more than {seconds:g} s"]
        except MemoryError:
            return [None, "it needed more memory than the renderer may use"]
        except RecursionError:
            return [None, "RecursionError: the template or its data nest too deep"]
        except Exception as error:
            return [None, f"{type(error).__name__}: {error}"[:500]]
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
        if len(text) > characters:
            return [None, f"its output has {len(text)} characters, over the limit of {characters}"]
        return [text, None]

    while (request := read_frame(source)) is not None:
        if "tags" in request:
            try:
                write_frame(sink, tags(setting["templates"][request["tags"]]))
            except Exception:
                write_frame(sink, [])
            continue
        records, step = request["records"], request["flush"]
        for first in range(0, len(records), step):
            _more_cpu(10 * seconds + 60)
            write_frame(sink, [answer(record, request["marked"]) for record in records[first : first + step]])


if __name__ == "__main__":
    main()
