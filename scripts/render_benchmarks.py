#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes benchmark results as tables between the markers of a page.

    render_benchmarks.py [--page PAGE] RESULT.json...

RESULT.json comes from `switchyard bench layer|routing --json` or from bench/peers/run.py --json. The page
(docs/benchmarks.md by default) holds

    <!-- begin benchmarks -->
    <!-- end benchmarks -->

and what stands between is replaced. Exit status: 0 written, 2 a result or the page is not as it should be.
"""
import argparse
import json
import pathlib
import re
import sys

import tree

BLOCK = re.compile(r"(<!-- begin benchmarks[^\n]* -->\n)(.*?)(<!-- end benchmarks -->)", re.S)


def table(heads, rows):
    """A Markdown table; a head that starts with '>' aligns its column to the right."""
    lines = ["| " + " | ".join(h.lstrip(">") for h in heads) + " |",
             "|" + "|".join("---:" if h.startswith(">") else "---" for h in heads) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def machine(result):
    m = result["machine"]
    return (f"{m['cpu_model'] or 'unnamed CPU'}, {m['cpus']} CPUs, L3 {m['l3_bytes'] // (1 << 20)} MiB, "
            f"tier {m['cpu_isa']}")


def heading(title, result):
    return (f"### {title}\n\n`{result['command']}`\n\n{machine(result)}. Switchyard {result['version']} "
            f"({result['commit']}), {result['date'][:10]}.")


def figures(row):
    """What the columns show: the fresh calls, or else the cold or the warm ones."""
    return row.get("fresh") or row.get("cold") or row["warm"]


def p50(row, state):
    return f"{row[state]['time_us']['p50']:.0f}" if state in row else "-"


def share(row):
    """The share of the roof, beside the bar that it is held to."""
    reached = f"{figures(row)['share_of_roof']:.2f}"
    if "bar" not in row:
        return reached
    bar = f"{row['bar']['share_of_roof']:.2f}"
    return f"{reached} of {bar}" if row["bar"]["met"] else f"**{reached} of {bar}, missed**"


def drift(roof, rate):
    return f"{100 * (roof['end'][rate] / roof['start'][rate] - 1):+.0f} %"


def layer(result):
    roof = result["roof"]
    first = result["measurements"][0]
    rows = []
    for r in result["measurements"]:
        shown, time = figures(r), figures(r)["time_us"]
        error = f"{r['rel_l2']:.1e}" if r["ok"] else f"**{r['rel_l2']:.1e}, wrong**"
        rows.append((f"`{r['format']}`", str(r["tokens"]), r["routing"], str(shown["distinct_experts"]),
                     f"{time['p50']:.0f}", f"{time['p90']:.0f}", f"{time['p99']:.0f}", f"{time['min']:.0f}",
                     p50(r, "cold"), p50(r, "warm"), f"{shown['gbps']:.1f}", f"{shown['gflops']:.0f}", share(r),
                     f"{r['router_time_us']['p50']:.0f}", error))
    state = next(s for s in ("fresh", "cold", "warm") if s in first)
    heads = ("format", ">tokens", "routing", ">experts", f">{state} p50 µs", ">p90", ">p99", ">min", ">cold p50 µs", ">warm p50 µs", ">GB/s",
             ">GFLOP/s", ">share of roof", ">router µs", ">rel L2")
    changed = "".join(f", {o}" for o in first.get("overrides", []))
    text = [heading(f"One layer of {first.get('preset') or first['checkpoint']}{changed}, {first['threads']} threads", result),
            f"Roof of the session: {roof['gbps']:.1f} GB/s, {roof['gflops']:.0f} GFLOP/s ({roof['samples']} samples, "
            f"drift {drift(roof, 'gbps')} and {drift(roof, 'gflops')}).", table(heads, rows)]
    for s in result["skipped"]:
        text.append(f"`{s['format']}` is skipped: {s['reason']}")
    return text


def routing(result):
    gemm = [(str(g["tokens"]), f"{g['gemm']['time_us']['p50']:.1f}", f"{g['ns_per_token']:.0f}",
             f"{g['naive_ns_per_token']:.0f}", f"{g['max_error']:.1e}") for g in result["gemm"]]
    choice = [(c["method"], str(c["tokens"]), str(c["top_k"]), f"{c['choice']['time_us']['p50']:.1f}",
               f"{c['ns_per_token']:.0f}", f"{c['naive_ns_per_token']:.0f}",
               f"{c['ids_agreeing']} of {c['checked_tokens']}" if c["ids_differing"] == 0 else
               f"**{c['ids_differing']} of {c['checked_tokens']} differ**") for c in result["choice"]]
    first = result["gemm"][0]
    return [heading(f"Routing at {first['preset']}, {first['threads']} threads", result),
            table((">router GEMM, tokens", ">p50 µs", ">ns a token", ">naive ns a token", ">max error"), gemm),
            table(("method", ">tokens", ">k", ">p50 µs", ">ns a token", ">naive ns a token", "ids as the oracle's"),
                  choice)]


def peer(result):
    rows = [(f"`{r['format']}`", f"`{r['peer_type']}`", str(r["tokens"]), f"{r['ours_us']:.0f}", f"{r['peer_us']:.0f}",
             f"{r['ratio']:.2f}", r["peer_note"]) for r in result["rows"]]
    return [heading(f"{result['rows'][0]['peer_version']} beside ours, {result['preset']}, {result['threads']} threads",
                    result),
            table(("ours", "theirs", ">tokens", ">ours µs", ">theirs µs", ">theirs / ours", "theirs: what is timed"), rows)]


KINDS = {"switchyard.bench.layer.1": layer, "switchyard.bench.routing.1": routing, "switchyard.bench.peer.1": peer}


def render(results):
    """The text between the markers."""
    return "\n" + "\n".join(part + "\n" for r in results for part in KINDS[r["schema"]](r)) if results else "\n"


def replaced(page, results):
    """The page with its block made anew."""
    text, count = BLOCK.subn(lambda m: m.group(1) + render(results) + m.group(3), page)
    if count != 1:
        raise ValueError("the page has not exactly one pair of markers begin benchmarks and end benchmarks")
    return text


def read(path):
    result = json.loads(pathlib.Path(path).read_text())
    if result.get("schema") not in KINDS:
        raise ValueError(f"its schema {result.get('schema')} is none of {', '.join(KINDS)}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=pathlib.Path, default=tree.ROOT / "docs/benchmarks.md")
    parser.add_argument("results", nargs="+", metavar="RESULT.json")
    args = parser.parse_args()
    path = args.page
    try:
        results = []
        for path in args.results:
            results.append(read(path))
        path = args.page
        args.page.write_text(replaced(args.page.read_text(), results))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        print(f"render_benchmarks: {path}: {error or type(error).__name__}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
