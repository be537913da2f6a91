#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/benchmarks.md, the script that writes them, and the peers' scripts without their peers."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "bench/peers"))
import render_benchmarks  # noqa: E402
import run as peers  # noqa: E402
import torch_grouped_mm  # noqa: E402

HEADER = {"version": "1.2.3", "commit": "abcdef", "date": "2031-02-03T04:05:06Z", "command": "switchyard bench x --json",
          "machine": {"cpu_model": "Abacus 9", "cpus": 2, "l3_bytes": 48 << 20, "cpu_isa": "avx512"}}
PAGE = "before\n<!-- begin benchmarks; by a script -->\nstale words\n<!-- end benchmarks -->\nafter\n"


def times(p50):
    return {"p50": p50, "p90": p50 * 1.1, "p99": p50 * 1.2, "min": p50 * 0.9, "samples": 10}


def layer_row(**change):
    row = {"preset": "tiny", "format": "nvfp4", "tokens": 8, "routing": "uniform", "threads": 2, "rel_l2": 1.5e-3, "ok": True,
           "fresh": {"time_us": times(1234.0), "distinct_experts": 55, "gbps": 12.3, "gflops": 45.6, "share_of_roof": 0.61},
           "cold": {"time_us": times(1300.0)}, "warm": {"time_us": times(777.0)}, "router_time_us": {"p50": 9.0}}
    return {**row, **change}


def layer_result(*rows):
    return {**HEADER, "schema": "switchyard.bench.layer.1", "measurements": list(rows), "skipped": [],
            "roof": {"gbps": 20.0, "gflops": 160.0, "samples": 26, "start": {"gbps": 20.0, "gflops": 160.0},
                     "end": {"gbps": 19.0, "gflops": 164.0}}}


class Render(unittest.TestCase):
    def test_a_row_shows_its_figures(self):
        text = render_benchmarks.render([layer_result(layer_row())])
        self.assertIn("| `nvfp4` | 8 | uniform | 55 | 1234 | 1357 | 1481 | 1111 | 1300 | 777 | 12.3 | 46 | 0.61 | 9 | 1.5e-03 |", text)
        for part in ("switchyard bench x --json", "Abacus 9, 2 CPUs, L3 48 MiB", "1.2.3 (abcdef), 2031-02-03",
                     "20.0 GB/s, 160 GFLOP/s (26 samples, drift -5 % and +2 %)"):
            self.assertIn(part, text)

    def test_misses_and_mistakes_stand_out(self):
        bar = {"share_of_roof": 0.75, "met": False}
        text = render_benchmarks.render([layer_result(layer_row(bar=bar), layer_row(ok=False))])
        self.assertIn("**0.61 of 0.75, missed**", text)
        self.assertIn("**1.5e-03, wrong**", text)
        met = render_benchmarks.render([layer_result(layer_row(bar={"share_of_roof": 0.5, "met": True}))])
        self.assertIn("| 0.61 of 0.50 |", met)
        self.assertNotIn("**", met)

    def test_a_row_without_a_state_and_with_overrides(self):
        warm = layer_row(warm={**layer_row()["fresh"], "time_us": times(777.0)}, overrides=["top_k 4"])
        del warm["cold"], warm["fresh"]
        text = render_benchmarks.render([layer_result(warm)])
        self.assertIn("| `nvfp4` | 8 | uniform | 55 | 777 | 855 | 932 | 699 | - | 777 |", text)
        self.assertIn(" warm p50 µs | p90 ", text)
        self.assertIn("One layer of tiny, top_k 4, 2 threads", text)
        cold = layer_row()
        del cold["warm"]
        self.assertIn("| 1111 | 1300 | - | 12.3 |", render_benchmarks.render([layer_result(cold)]))
        cold["cold"] = cold.pop("fresh")
        self.assertIn(" cold p50 µs | p90 ", render_benchmarks.render([layer_result(cold)]))

    def test_skipped_formats_are_named(self):
        result = {**layer_result(layer_row()), "skipped": [{"format": "bf16", "reason": "too large", "layer": 0}]}
        self.assertIn("`bf16` is skipped: too large", render_benchmarks.render([result]))

    def test_routing_and_peers(self):
        routing = {**HEADER, "schema": "switchyard.bench.routing.1",
                   "gemm": [{"preset": "tiny", "threads": 2, "tokens": 4, "gemm": {"time_us": times(3.0)}, "ns_per_token": 750.0,
                             "naive_ns_per_token": 9000.0, "max_error": 1e-7}],
                   "choice": [{"method": "TopK", "tokens": 4, "top_k": 2, "choice": {"time_us": times(1.5)},
                               "ns_per_token": 375.0, "naive_ns_per_token": 800.0, "checked_tokens": 4, "ids_agreeing": 4,
                               "ids_differing": 0}]}
        peer = {**HEADER, "schema": "switchyard.bench.peer.1", "preset": "tiny", "threads": 2,
                "rows": [{"format": "bf16", "peer_type": "bf16", "tokens": 4, "ours_us": 10.0, "peer_us": 15.0, "ratio": 1.5,
                          "peer_note": "all", "peer_version": "abacus 3"}]}
        text = render_benchmarks.render([routing, peer])
        self.assertIn("| TopK | 4 | 2 | 1.5 | 375 | 800 | 4 of 4 |", text)
        self.assertIn("| `bf16` | `bf16` | 4 | 10 | 15 | 1.50 | all |", text)
        routing["choice"][0]["ids_differing"] = 1
        self.assertIn("**1 of 4 differ**", render_benchmarks.render([routing]))

    def test_only_the_block_changes(self):
        text = render_benchmarks.replaced(PAGE, [layer_result(layer_row())])
        self.assertTrue(text.startswith("before\n<!-- begin benchmarks; by a script -->\n"))
        self.assertTrue(text.endswith("<!-- end benchmarks -->\nafter\n"))
        self.assertNotIn("stale words", text)
        self.assertEqual(render_benchmarks.replaced(text, [layer_result(layer_row())]), text)
        for bad in ("no markers", PAGE + PAGE, PAGE.replace("<!-- end", "<!-- fin")):
            with self.assertRaises(ValueError):
                render_benchmarks.replaced(bad, [])

    def test_the_script_says_what_is_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            page = folder / "page.md"
            page.write_text(PAGE)
            (folder / "good.json").write_text(json.dumps(layer_result(layer_row())))
            (folder / "bad.json").write_text('{"schema": "other"}')

            def script(*results):
                return subprocess.run([sys.executable, ROOT / "scripts/render_benchmarks.py", "--page", page,
                                       *[folder / r for r in results]], capture_output=True, text=True)
            for name in ("bad.json", "none.json"):
                done = script("good.json", name)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stderr.count("\n"), 1)
                self.assertIn(name, done.stderr)
                self.assertEqual(page.read_text(), PAGE, "a bad result leaves the page as it was")
            self.assertEqual(script("good.json").returncode, 0)
            self.assertIn("nvfp4", page.read_text())

    def test_the_real_page_has_its_markers(self):
        page = (ROOT / "docs/benchmarks.md").read_text()
        self.assertIn("### ", render_benchmarks.replaced(page, [layer_result(layer_row())]))


class Command(unittest.TestCase):
    def test_what_the_command_prints_is_rendered(self):
        if "SWITCHYARD_COMMAND" not in os.environ:
            self.skipTest("no command is given")
        command = os.environ["SWITCHYARD_COMMAND"]
        for kind in (["layer", "--state", "warm", "--tokens", "2"], ["routing", "--preset", "tiny", "--tokens", "2"]):
            done = subprocess.run([command, "bench", *kind, "--seconds", "0.001", "--json"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| 2 |", render_benchmarks.render([json.loads(done.stdout)]))


class Peers(unittest.TestCase):
    def test_the_shared_part_compiles(self):
        with tempfile.NamedTemporaryFile("w", suffix=".cc") as source:
            source.write('#include "bench/peers/peer_traffic.h"\n'
                         "int main(int c, char** v) {\n  peers::Shape s = peers::read_shape(c, v);\n  std::mt19937 random(1);\n"
                         "  auto call = [](const std::vector<int32_t>&) {};\n"
                         '  peers::print_result(peers::time_calls(s, random, call, call), "none", "note", 0);\n}\n')
            source.flush()
            with tempfile.TemporaryDirectory() as folder:
                program = f"{folder}/p"
                subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}", source.name, "-o", program,
                                "-lpthread"], check=True)
                done = subprocess.run([program, *"64 32 8 2 3 2 bf16 0.001 1048576".split()], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertGreaterEqual(json.loads(done.stdout)["samples"], 5)
                self.assertEqual(subprocess.run([program, "1"], capture_output=True).returncode, 2)
                self.assertEqual(subprocess.run([program, *"64 32 2 8 3 2 bf16 1 0".split()], capture_output=True).returncode, 2)

    def test_every_peer_has_its_program_and_pairs(self):
        for name in peers.PEERS:
            self.assertTrue((ROOT / f"bench/peers/{name}_peer.cc").is_file())
            self.assertTrue(peers.PAIRS[name])

    def test_bad_words_exit_with_2(self):
        for words in ([], ["other"], ["ggml", "--tokens", "x"], ["ggml", "--threads", "0"], ["ggml", "--seconds", "-1"]):
            with self.assertRaises(SystemExit) as refused, open(os.devnull, "w") as quiet:
                before, sys.stderr = sys.stderr, quiet
                try:
                    peers.arguments(words)
                finally:
                    sys.stderr = before
            self.assertEqual(refused.exception.code, 2, words)

    def test_the_table_of_pytorch_names_the_sizes_that_fall_short(self):
        rows = [{"tokens": t, "torch_us": us, "torch_layout": "[in, out]", "ours_us": 100.0, "ratio": us / 100}
                for t, us in ((1, 210.0), (8, 139.0), (64, float("nan")))]
        lines, kept = torch_grouped_mm.table(rows, 1.4)
        self.assertFalse(kept)
        self.assertEqual(lines[-1], "ratios below 1.4: 1.39 at 8, nan at 64")
        self.assertRegex(lines[1], r"^ +1 +210.0 +100.0 +2.10 +\[in, out\]$")
        lines, kept = torch_grouped_mm.table(rows[:1], 1.4)
        self.assertTrue(kept)
        self.assertEqual(lines[-1], "every ratio is 1.4 or more")
        self.assertFalse(torch_grouped_mm.table(rows, 0)[1], "a ratio that is none keeps nothing")

    def test_pytorchs_better_layout_is_named_whichever_it_is(self):
        layer = mock.Mock(**{"bytes.return_value": 1 << 30})
        times = {(False, 1): 5.0, (True, 1): 7.0, (False, 8): 9.0, (True, 8): 4.0}
        made = []
        torch = mock.Mock()
        torch.cuda.get_device_properties.return_value.L2_cache_size = 1
        with mock.patch.object(torch_grouped_mm, "Layer", lambda _, __, turned: made.append(turned) or layer), \
                mock.patch.object(torch_grouped_mm, "time_theirs", lambda *a: times[made[-1], a[3]]):
            best = torch_grouped_mm.time_layouts(torch, [1, 1, 1, 1], [1, 8], 0.1)
        self.assertEqual(best, {1: (5.0, "[in, out]"), 8: (4.0, "[out, in]")})

    def test_pytorchs_script_asks_the_command_and_says_what_is_missing(self):
        script = [sys.executable, ROOT / "bench/peers/torch_grouped_mm.py"]
        done = subprocess.run([*script, "--command", "/nothing/there"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("/nothing/there cannot be run", done.stderr)
        self.assertEqual(subprocess.run([*script, "--tokens", "0"], capture_output=True).returncode, 2)
        if "SWITCHYARD_COMMAND" not in os.environ:
            self.skipTest("no command is given")
        command = os.environ["SWITCHYARD_COMMAND"]
        self.assertEqual(torch_grouped_mm.shape_of(command, "qwen3-30b-a3b"), [2048, 768, 128, 8])
        with tempfile.TemporaryDirectory() as folder:  # libraries beside the command are found
            stub = pathlib.Path(folder) / "stub"
            (stub.parent / "lib").mkdir()
            stub.write_text('#!/bin/sh\necho "{\\"path\\": \\"$LD_LIBRARY_PATH\\"}"\n')
            stub.chmod(0o755)
            self.assertTrue(torch_grouped_mm.ask(stub, "doctor")["path"].startswith(str(stub.parent.resolve() / "lib")))

    def test_a_peer_that_cannot_be_had_is_one_line(self):
        with self.assertRaisesRegex(peers.NoPeer, "fetching it: there is no nothing-of-that-name here"):
            peers.must(["nothing-of-that-name"], "fetching it")
        with self.assertRaisesRegex(peers.NoPeer, "^step: .*[^\n]$"):
            peers.must(["ls", "/nothing/there"], "step", cwd="/")


if __name__ == "__main__":
    unittest.main()
