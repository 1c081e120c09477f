"""What the site of the documentation has beside docs/: pages of the reference that are made from
the code when it is built (``mkdocs.yml`` has this file as its hook), and links to the repository.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from tailer import errors
from tailer.cli.main import build_parser
from tailer.share_server.openapi import describe_api
from tests.house.test_links import anchors
from tests.house.test_public_api import listed
from tests.support.source import ROOT, SourceFile, called, python_files

_LINK = re.compile(r"(\[[^\]]*\]\(|^\[[^\]]+\]: )([^)\s#:]+)((?:#[^)\s]*)?(?:\)|$))", re.MULTILINE)


def slug(text: str, separator: str) -> str:
    """Return a heading's anchor as GitHub makes it, for the pages are read there too."""
    (anchor,) = anchors(f"# {text}") if separator else ("",)
    return anchor


def commands() -> Iterator[str]:
    """The page of the commands: what each of them says with ``--help``."""
    os.environ["COLUMNS"] = "88"
    yield "# Commands\n\nMade from the code: what `tailer COMMAND --help` prints.\n"
    whole = build_parser()
    for name, one in {"": whole, **_parsers()}.items():
        yield f"## {f'tailer {name}'.strip()}\n"
        yield f"```text\n{one.format_help()}```\n"


def _parsers() -> dict[str, Any]:
    """The parsers of the commands, by name."""
    (choices,) = (each.choices for each in build_parser()._actions if each.dest == "command")
    return dict(choices or {})


def error_table(files: list[SourceFile]) -> Mapping[str, list[tuple[str, str]]]:
    """Return what the errors of each family say: the sentence and its remedy, in which a value
    that is put in is `…`."""
    families = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    table: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for file in files:
        for node in ast.walk(ast.parse(file.text)):
            if isinstance(node, ast.Call) and called(node) in families and node.args:
                words = {each.arg: each.value for each in node.keywords}
                sentence, remedy = _text(node.args[0]), _text(words.get("hint"))
                if not remedy and "; " in sentence:
                    sentence, _, remedy = sentence.rpartition("; ")
                if sentence.strip("… "):
                    table[called(node)].add((sentence, remedy))
    return {name: sorted(table[name]) for name in sorted(table)}


def _text(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
        case ast.FormattedValue():
            return "…"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
    return "" if node is None else "…"


def _errors() -> Iterator[str]:
    yield (
        "# Errors\n\nMade from the code: every error, by the family that says who must act. `…` "
        "stands for names and values. Each error is one sentence on standard error, in the log "
        "(`error`) and in the status of a feed; `tailer_errors_total` counts it.\n"
    )
    for family, rows in error_table(python_files("tailer", "sinks")).items():
        about = (getattr(errors, family).__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        yield f"## {family}\n\n{about}\n\n| what is said | what to do |\n| --- | --- |"
        for sentence, remedy in rows:
            yield f"| {_cell(sentence)} | {_cell(remedy.strip('…'))} |"
        yield ""


def _cell(text: str) -> str:
    for sign, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("[", "&#91;")):
        text = text.replace(sign, written)
    return " ".join(text.replace("*", "&#42;").replace("_", "&#95;").split())


def _http() -> Iterator[str]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    control = page.partition("## Control\n")[2].partition("\n## ")[0]
    yield "# HTTP\n\n## The daemon\n"
    yield re.sub(r"\]\((?=[\w-]+\.md)", "](../", control)
    yield "\n## The sharing server\n\nMade from its OpenAPI description, which it serves itself.\n"
    yield "| request | what it does |\n| --- | --- |"
    for path, methods in describe_api("https://sharing.example.org")["paths"].items():
        for method, operation in methods.items():
            if "summary" in operation:
                yield f"| `{method.upper()} {path}` | {_cell(operation['summary'])} |"


def _python() -> Iterator[str]:
    architecture = "[Architecture](../architecture.md#public-api)"
    yield f"# Python\n\nThe names that are stable: see {architecture}.\n"
    for module, names in listed().items():
        yield f"## {module}\n"
        for name in names:
            home = getattr(getattr(import_module(module), name), "__module__", module)
            yield f"::: {home}.{name}\n"


#: The pages that are made, by their place in the site.
PAGES = {
    "reference/commands.md": commands,
    "reference/errors.md": _errors,
    "reference/http.md": _http,
    "reference/python.md": _python,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made: MkDocs calls this."""
    from mkdocs.structure.files import File

    for path, made in PAGES.items():
        files.append(File.generated(config, path, content="\n".join(made()) + "\n"))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that lead out of docs/ into links to the repository: MkDocs calls this."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if not target.exists():
            return found[0]
        if target.is_relative_to(ROOT / "docs"):
            known = files.get_file_from_path(str(target.relative_to(ROOT / "docs")))
            if known and known.inclusion.is_included():
                return found[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"{found[1]}{config.repo_url}/{kind}/main/{target.relative_to(ROOT)}{found[3]}"

    return _LINK.sub(link, text)
