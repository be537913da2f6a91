# SPDX-License-Identifier: Apache-2.0
"""A small scanner of our own C++: declarations with scope, lines and doc comments; function spans.

It knows the language as this repository writes it (no macros that open scopes, balanced braces in
every #if branch), which keeps the checks free of a compiler and fast enough for every commit.
"""
import dataclasses
import re

TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|<=>|::|->|==|!=|<=|>=|&&|\|\||[^\s\w]")
RAW_STRING = re.compile(r'R"([^()\\ ]{0,16})\(')
TYPE_WORDS = {"class", "struct", "union", "enum"}
# Words whose parentheses are not a parameter list.
NOT_A_NAME = {"alignas", "decltype", "explicit", "noexcept", "requires", "__attribute__"}
PREFIX_WORDS = {"inline", "static", "constexpr", "extern", "typedef", "const", "final"}


@dataclasses.dataclass
class Declaration:
    """One declaration of a scope; `kind` is type, alias, function, variable or ignored."""

    kind: str
    name: str  # ends in <> for a template's specialisation
    scope: tuple  # names of the enclosing namespaces and types
    owner: str  # namespace, class or struct
    access: str  # public, protected or private
    first_line: int
    last_line: int
    text: str  # its tokens up to the body, joined by blanks
    has_body: bool
    statements: int  # semicolons in the body


def blank(text):
    """Keeps newlines, so that offsets still tell lines."""
    return re.sub(r"[^\n]", " ", text)


def strip(source):
    """Source without comments, literals and preprocessor lines; same length, same lines."""
    out, i, n = [], 0, len(source)
    while i < n:
        c, pair = source[i], source[i : i + 2]
        if pair == "//":
            end = source.find("\n", i)
        elif pair == "/*":
            end = source.find("*/", i)
            end = n if end < 0 else end + 2
        elif c == "#" and not source[source.rfind("\n", 0, i) + 1 : i].strip():
            end = i
            while True:  # a directive goes on behind a backslash
                end = source.find("\n", end)
                if end < 0 or source[end - 1] != "\\":
                    break
                end += 1
        elif raw := RAW_STRING.match(source, i):
            end = source.find(")" + raw.group(1) + '"', i)
            end = n if end < 0 else end + len(raw.group(1)) + 2
        elif c in "\"'" and not (c == "'" and i > 0 and source[i - 1].isalnum()):
            end = i + 1
            while end < n and source[end] != c:
                end += 2 if source[end] == "\\" else 1
            end += 1
        else:
            out.append(c)
            i += 1
            continue
        end = n if end < 0 else min(end, n)
        out.append(blank(source[i:end]))
        i = end
    return "".join(out)


class Scanner:
    """Walks the tokens of one file; `declarations` holds what it met, in order."""

    CLOSE = {"(": ")", "[": "]", "{": "}"}

    def __init__(self, source):
        code = strip(source)
        starts = [0] + [m.end() for m in re.finditer("\n", code)]
        self.tokens, self.lines, line = [], [], 0
        for match in TOKEN.finditer(code):
            while line + 1 < len(starts) and starts[line + 1] <= match.start():
                line += 1
            self.tokens.append(match.group())
            self.lines.append(line + 1)
        self.declarations = []
        self.scope(0, "namespace", (), "public")

    def at(self, i):
        return self.tokens[i] if i < len(self.tokens) else ""

    def skip(self, i):
        """Index behind the bracket that closes the one at i."""
        depth = 0
        while i < len(self.tokens):
            if self.tokens[i] in self.CLOSE:
                depth += 1
            elif self.tokens[i] in ")]}":
                depth -= 1
                if depth == 0:
                    return i + 1
            i += 1
        return i

    def skip_angles(self, i):
        """Index behind the template parameter list that opens at i."""
        depth = 0
        while i < len(self.tokens):
            token = self.tokens[i]
            if token in "([{":
                i = self.skip(i)
                continue
            depth += (token == "<") - (token == ">")
            i += 1
            if depth == 0:
                break
        return i

    def scope(self, i, owner, names, access):
        """Reads declarations until the brace that closes this scope; returns the index behind it."""
        while i < len(self.tokens):
            token = self.tokens[i]
            if token == "}":
                return i + 1
            if token == ";":
                i += 1
            elif token in ("public", "protected", "private") and self.at(i + 1) == ":":
                access, i = token, i + 2
            else:
                i = self.declaration(i, owner, names, access)
        return i

    def declaration(self, begin, owner, names, access):
        i, head = begin, []
        specialises = False
        while self.at(i) == "template":
            specialises = self.tokens[i + 1 : i + 3] == ["<", ">"]
            i = self.skip_angles(i + 1)
        if self.at(i) == "requires" and self.at(i + 1) == "(":
            i = self.skip(i + 1)
        start = i
        words = self.tokens[i : i + 3]
        if "namespace" in words[:2] or (words[:1] == ["extern"] and words[1:2] == ["{"]):
            return self.enter_namespace(i, names)
        in_init_list = False
        while i < len(self.tokens):
            token = self.tokens[i]
            if token in "([":
                head += self.tokens[i : self.skip(i)]
                i = self.skip(i)
                continue
            if token in ";}":
                break
            if token == "{":
                if self.is_type(head):
                    return self.enter_type(begin, i, owner, names, access, head)
                member = in_init_list and re.match(r"[\w>]", self.tokens[i - 1])
                if self.is_function(head) and not member:
                    break
                i = self.skip(i)
                continue
            in_init_list = in_init_list or (token == ":" and self.is_function(head))
            head.append(token)
            i += 1
        has_body = self.at(i) == "{"
        end = self.skip(i) if has_body else i + (self.at(i) == ";")
        kind, name = self.classify(head, self.tokens[start:i])
        name += "<>" if specialises else ""
        self.add(kind, name, names, owner, access, begin, max(end - 1, begin), head, has_body,
                 self.tokens[i:end].count(";") if has_body else 0)
        return max(end, begin + 1)

    def enter_namespace(self, i, names):
        parts = []
        while self.at(i) not in ("{", ";", ""):
            parts.append(self.tokens[i])
            i += 1
        parts = [p for p in parts if p not in ("inline", "namespace", "::", "extern")] or [""]
        if self.at(i) != "{":
            return i + 1
        return self.scope(i + 1, "namespace", names + tuple(parts), "public")

    def enter_type(self, begin, brace, owner, names, access, head):
        words = [t for t in head if t not in PREFIX_WORDS]
        key = next(t for t in words if t in TYPE_WORDS)
        behind = words[words.index(key) + 1 :]
        name = next((t for t in behind if re.match(r"[A-Za-z_]", t) and t not in TYPE_WORDS), "")
        if name and behind[behind.index(name) + 1 :][:1] == ["<"]:
            name += "<>"  # a specialisation
        self.add("type", name, names, owner, access, begin, brace, head, True)
        inner = "public" if key in ("struct", "union") else "private"
        if key == "enum":
            end = self.skip(brace)
        else:
            kind = "class" if key == "class" else "struct"
            end = self.scope(brace + 1, kind, names + (name,), inner)
        while self.at(end) not in (";", ""):
            end += 1
        return end + 1

    def is_type(self, head):
        words = [t for t in head if t not in PREFIX_WORDS]
        return bool(words) and words[0] in TYPE_WORDS and "(" not in words

    def is_function(self, head):
        return self.parameter_list(head) is not None

    @staticmethod
    def parameter_list(head):
        """Index of the parenthesis that opens the parameters, or None for a variable."""
        if "operator" in head:
            at = head.index("operator") + 1
            at += 2 if head[at : at + 2] == ["(", ")"] else 1
            return head.index("(", at) if "(" in head[at:] else None
        depth, i = 0, 0
        while i < len(head):
            token = head[i]
            if token == "=" and depth == 0:
                return None
            if token == "(" and depth == 0 and i > 0:
                if head[i - 1] not in NOT_A_NAME:
                    is_pointer = head[i + 1 : i + 2] == ["*"]
                    named = re.match(r"[A-Za-z_]", head[i - 1])
                    return i if named and not is_pointer else None
            # A "<" in front of the parameters opens template arguments; no comparison stands there.
            depth += (token in ("(", "[", "<")) - (token in (")", "]", ">"))
            i += 1
        return None

    def classify(self, head, tokens):
        if not head:
            return "ignored", ""
        first = head[0]
        if first in ("friend", "static_assert") or tokens[:2] == ["using", "namespace"]:
            return "ignored", ""
        if first == "using":
            return ("alias", head[1]) if "=" in head else ("ignored", "")
        if first == "concept":
            return "type", head[1]
        if self.is_type(head) and len([t for t in head if re.match(r"[A-Za-z_]", t)]) <= 2:
            return "ignored", ""  # a forward declaration
        at = self.parameter_list(head)
        if at is None:
            names = [t for t in self.before_value(head) if re.match(r"[A-Za-z_]", t)]
            return "variable", names[-1] if names else ""
        if "operator" in head[:at]:
            return "function", "".join(head[head.index("operator") : at])
        return "function", ("~" if head[at - 2 : at - 1] == ["~"] else "") + head[at - 1]

    @staticmethod
    def before_value(head):
        return head[: head.index("=")] if "=" in head else head

    def add(self, kind, name, names, owner, access, first, last, head, has_body, statements=0):
        last = min(last, len(self.lines) - 1)
        self.declarations.append(
            Declaration(kind, name, names, owner, access, self.lines[first], self.lines[last],
                        " ".join(head), has_body, statements))


def declarations(source):
    """All declarations of one file's text."""
    return Scanner(source).declarations
