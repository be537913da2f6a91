#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a public declaration of a header without a /// doc comment.

Public is: every type, alias, concept, function and constant at namespace scope, and every public
member function, nested type, alias and static constant. The comment stands directly above (plain //
lines may stand between) or behind the declaration as ///<, and says something.

Exempt, because a comment could only repeat the name:
  - forward declarations, using-declarations, friends, static_asserts; `= default`, `= delete`,
    `override`; operators == and <=>;
  - special members: default, copy and move construction and assignment, destruction;
  - data members and enumerators (a trailing // tells units or shape where they need it);
  - inline member functions of a struct with at most one statement (a plain value's accessors);
  - the only other member function of a documented struct, which the struct's comment describes
    (the formula of a policy, check() of an Args struct);
  - an overload directly under a documented function of the same name;
  - specialisations of a template, whose primary has the comment;
  - everything in an unnamed namespace or one called detail.

Usage: check_docs.py ROOT...   (folders or headers)
"""
import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cpp_scan  # noqa: E402

HEADERS = {".h", ".cuh"}
COMPARISON = re.compile(r"operator(==|<=>)$")
DEFAULTED = re.compile(r"= (default|delete)$")


def is_documented(lines, first_line):
    """True when a /// comment with a word in it stands above line `first_line` (counted from 1)."""
    if re.search(r"///<\s*\w", lines[first_line - 1]):
        return True
    i = first_line - 2
    while i >= 0 and re.match(r"\s*//(?!/)", lines[i]):
        i -= 1
    words = ""
    while i >= 0 and lines[i].lstrip().startswith("///"):
        words += lines[i]
        i -= 1
    return re.search(r"\w", words) is not None


def is_public(d):
    hidden = "detail" in d.scope or "" in d.scope
    return (d.kind != "ignored" and d.access == "public" and not hidden
            and not d.name.endswith("<>"))


def is_special_member(d):
    """Default, copy and move construction and assignment, destruction."""
    own = d.scope[-1] if d.scope else ""
    constructs = d.name == own and re.search(
        rf"\b{own} \( (?:(?:const )?{own} &(?:&| &)?(?: \w+)? )?\)", d.text) is not None
    return constructs or d.name == "operator=" or d.name.startswith("~")


def is_accessor(d):
    return d.owner == "struct" and d.has_body and d.statements <= 1


def is_exempt(d):
    if d.kind == "function":
        return (is_special_member(d) or COMPARISON.match(d.name) is not None
                or DEFAULTED.search(d.text) is not None or " override" in d.text or is_accessor(d))
    if d.kind == "variable" and d.owner != "namespace":
        return "static" not in d.text.split()
    return False


def undocumented(source):
    """Yields (line, kind, name) for each public declaration of `source` without its comment."""
    lines = source.splitlines()
    private_types, last = set(), None
    found = cpp_scan.declarations(source)
    functions = collections.Counter(d.scope for d in found if d.kind == "function" and d.owner == "struct"
                                    and not is_exempt(d))
    for d in found:
        inside_private = any(d.scope[: len(p)] == p for p in private_types)
        public = is_public(d) and not inside_private
        if d.kind == "type" and not public:
            private_types.add(d.scope + (d.name,))
        only = d.kind == "function" and d.owner == "struct" and functions[d.scope] == 1
        if not public or is_exempt(d) or only:
            continue
        overload = (last is not None and d.kind == "function"
                    and (last.name, last.scope) == (d.name, d.scope)
                    and last.last_line + 1 >= d.first_line)
        if overload or is_documented(lines, d.first_line):
            last = d
        else:
            yield d.first_line, d.kind, "::".join([n for n in d.scope if n] + [d.name])


def headers(roots):
    for root in map(pathlib.Path, roots):
        yield from sorted(p for p in ([root] if root.is_file() else root.rglob("*"))
                          if p.suffix in HEADERS)


def main():
    found = checked = 0
    for path in headers(sys.argv[1:]):
        checked += 1
        for line, kind, name in undocumented(path.read_text()):
            found += 1
            print(f"{path}:{line}: {kind} {name} has no /// doc comment")
    if checked == 0:
        print("check_docs: no header found under", *sys.argv[1:])
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
