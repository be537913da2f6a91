# SPDX-License-Identifier: Apache-2.0
"""The generated tables of the pages: each is a function of the facts that the library prints."""
import itertools
import re

import tree

SOURCE = tree.ROOT / "src/switchyard"


def table(heads, rows):
    """Lines of a Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "".join(line + "\n" for line in lines + ["| " + " | ".join(row) + " |" for row in rows])


def code(word):
    return f"`{word}`" if word else ""


def formats(facts):
    def leaf(row, device):
        return code(row[device]) if row[f"{device}_built"] else "not built"
    return table(("format", "on the CPU", "on CUDA", "stored and computed as"),
                 [(code(r["format"]), leaf(r, "cpu"), leaf(r, "cuda"), r["doc"]) for r in facts["formats"]])


def extent(row):
    """A block's extent in words; 0 is the whole one."""
    if row["scale"] == "none":
        return ""
    rows, cols = row["block_rows"], row["block_cols"]
    return {(1, 0): "1 x whole row", (0, 0): "whole matrix"}.get((rows, cols), f"{rows} x {cols}")


def layouts(facts):
    return table(("format", "element", "bits", "block scale", "of a block of", "global scale", "activations",
                  "their scale", "bytes of 1024 x 1024"),
                 [(code(r["format"]), r["element"], str(r["bits"]), r["scale"], extent(r),
                   "f32" if r["global_scale"] else "", r["activation"], "static" if r["static"] else
                   "" if r["activation"] == "none" else "dynamic", f"{r['stored_bytes']:,}")
                  for r in facts["formats"]])


def identities(facts):
    return table(("asked", "identity", "state"),
                 [(str(number), code(row[device]),
                   "built" if row[f"{device}_built"] else "registered, not built")
                  for number, (device, row) in enumerate(itertools.product(("cpu", "cuda"), facts["formats"]), 1)])


def gate(facts, device):
    """Both gates of a device in one: a step that only 4-bit formats have says so."""
    four_bit, wider = (facts["gates"][device][name] for name in ("nvfp4", "fp8"))
    everywhere = {step["fault"] for step in wider}
    return table(("step", "what is refused", "reason", "as it reads"),
                 [(str(number), step["fault"] + ("" if step["fault"] in everywhere else " (4-bit formats)"),
                   code(step["reason"]), step["detail"]) for number, step in enumerate(four_bit, 1)])


def matrix(facts, device):
    """One row a feature; neighbours of one group with the same answers share a row."""
    rows = []
    for (group, cells), found in itertools.groupby(
            facts["matrix"][device], lambda row: (row["group"], tuple(row["cells"]))):
        names = ", ".join(row["feature"] for row in found)
        rows.append((group, names, *("yes" if cell == "yes" else code(cell) for cell in cells)))
    return table(("", "asked for", *(code(row["format"]) for row in facts["formats"])), rows)


def reasons(facts):
    """The closed reasons with the remarks that stand beside them in the header."""
    header = (SOURCE / "core/eligibility.h").read_text()
    body = re.search(r"enum class Reject[^{]*\{(.*?)\};", header, re.S).group(1)
    remarks = re.findall(r"^\s*k\w+,?\s*// (.*)$", body, re.M)
    if len(remarks) != len(facts["reasons"]):
        raise SystemExit("core/eligibility.h: each reason needs a remark behind it")
    return table(("reason", "means"), [(code(word), remark) for word, remark in zip(facts["reasons"], remarks)])


def switches(facts):
    def row(s):
        instead = s["replacement"]
        if s["status"] == "honoured":
            return (code(s["name"]), "stable", code(s["default"]), "yes" if s["in_fingerprint"] else "no", s["doc"])
        means = f"The same as {code(instead)}." if s["status"] == "alias" else f"Nothing: {instead}."
        return (code(s["name"]), "old name, warns once" if s["status"] == "alias" else "retired, warns once", "", "",
                means)
    return table(("variable", "status", "default", "ranks must agree", "means"), map(row, facts["switches"]))


def strategies(facts):
    return table(("strategy", "state", "why"),
                 [(code(s["strategy"]), code(s["reason"]) or "serves", s["detail"]) for s in facts["strategies"]])


def presets(facts):
    keys = ("hidden", "inter", "experts", "top_k", "shared")
    return table(("preset", "H", "I", "E", "k", "shared", "routing", "factor", "activation"),
                 [(code(p["preset"]), *(str(p[key]) for key in keys),
                   p["routing"] + (f", {p['groups']} groups keep {p['kept']}" if p["groups"] > 1 else ""),
                   p["factor"], code(p["activation"])) for p in facts["presets"]])


def tiers(facts):
    """Tiers, the twin that serves each, and the compiler flags that say what it needs."""
    text = (tree.ROOT / "cmake/twins.cmake").read_text()
    flags = dict(re.findall(r"^set\(SWITCHYARD_(AVX2|AVX512|AMX) (.*)\)$", text, re.M))

    def needs(tier):
        words = re.sub(r"\$\{SWITCHYARD_(\w+)\}", lambda m: m.group(1).lower() + ",", flags.get(tier.upper(), ""))
        if tier == "zen4":  # no instruction of its own, another choice among them
            return "avx512, of AMD's family 19h or later"
        return words.replace("-m", "").replace(", ", ", ") or "any CPU"
    return table(("tier", "CPU twin of the expert GEMMs that runs", "instruction sets that it needs"),
                 [(code(t["tier"]), code(t["runs"]), needs(t["tier"])) for t in facts["tiers"]])


def families(facts):
    return ", ".join(code(name) for name in facts["families"]) + ".\n"


def schemas(facts):
    return "".join(f"- {code(name)}\n" for name in facts["schemas"])


def preferences(facts):
    return ", ".join(code(word) for word in facts["preference_words"]) + ".\n"


TABLES = {
    "formats": formats, "layouts": layouts, "identities": identities, "reasons": reasons, "switches": switches,
    "strategies": strategies, "presets": presets, "tiers": tiers, "families": families, "schemas": schemas,
    "preferences": preferences,
    "gate_cpu": lambda f: gate(f, "cpu"), "gate_cuda": lambda f: gate(f, "cuda"),
    "matrix_cpu": lambda f: matrix(f, "cpu"), "matrix_cuda": lambda f: matrix(f, "cuda"),
}
