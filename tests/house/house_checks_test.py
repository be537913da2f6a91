#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each house check must be able to fail: faults are injected into copies and have to be found."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = ROOT / "cmake"
sys.path.insert(0, str(CMAKE))
sys.path.insert(0, str(ROOT / "scripts"))
import check_docs  # noqa: E402
import check_suites  # noqa: E402
import cpp_scan  # noqa: E402
import fuzz  # noqa: E402


def run(*args):
    """(exit status, stdout) of a check."""
    done = subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True)
    return done.returncode, done.stdout


class Layers(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.source = pathlib.Path(self.temp.name) / "switchyard"
        shutil.copytree(ROOT / "src/switchyard", self.source)

    def check(self):
        return run(CMAKE / "check_layers.py", self.source, CMAKE / "layers.txt")

    def inject(self, folder, line):
        (self.source / folder).mkdir(exist_ok=True)
        (self.source / folder / "injected.h").write_text(line + "\n")

    def test_the_tree_is_clean(self):
        self.assertEqual(self.check(), (0, ""))

    def test_ops_may_not_include_leaves(self):
        self.inject("ops", '#include "switchyard/leaves/leaf.h"')
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("ops includes leaves, which stands below it", text)

    def test_comm_and_leaves_may_not_meet(self):
        for folder, other in (("comm", "leaves"), ("leaves", "comm")):
            self.inject(folder, f'#  include <switchyard/{other}/x.h>')
            self.assertEqual(self.check()[0], 1, folder)
            (self.source / folder / "injected.h").unlink()

    def test_downward_include_is_legal(self):
        self.inject("leaves", '#include "switchyard/ops/x.h"')
        self.assertEqual(self.check(), (0, ""))

    def test_unknown_folder(self):
        self.inject("attic", "")
        self.assertIn("folder 'attic' is not in layers.txt", self.check()[1])


HEADER = """
namespace switchyard {
/// A class.
class Documented {
 public:
  /// Makes one.
  explicit Documented(int a) : a_{a}, b_(a) {}
  Documented(const Documented&) = default;
  Documented();
  Documented(Documented&& other) noexcept;
  Documented& operator=(const Documented&);
  ~Documented();
  bool operator==(const Documented&) const;
%s
 private:
  void hidden();
  struct Inner { void also_hidden(int); };
  int a_, b_;
};
/// A value.
struct Value {
  int x = 0;  // elements
  int twice() const {
    return 2 * x;
  }
  std::function<int(const Value&)> call;
  void (*run)(const Value&) = nullptr;
};
/// Arguments; check() throws UsageError.
struct Args {
  int y = 0;
  void check() const;
};
class Forward;
template <> struct Trait<int> { void a(); void b(); };
template <class T> struct Trait<T*> { void a(); void b(); };
template <> int get<int>(int x);
namespace detail { int helper(int x); }
/// Adds.
template <class T>
T add(T a, T b);
int add(int a, int b);
%s
}  // namespace switchyard
"""


class Docs(unittest.TestCase):
    def names(self, member="", free=""):
        return [name for _, _, name in check_docs.undocumented(HEADER % (member, free))]

    def test_exemptions(self):
        self.assertEqual(self.names(), [])

    def test_every_kind_of_public_declaration_is_found(self):
        for free, name in {
            "int naked(int x);": "naked",
            "inline int naked(int x) {\n  return x;\n}": "naked",
            "struct Naked {};": "Naked",
            "template <class T> struct Naked : Base<T> {};": "Naked",
            "template <class T> int naked(T x);": "naked",
            "enum class Naked { kA };": "Naked",
            "using Naked = int;": "Naked",
            "template <class T> concept Naked = true;": "Naked",
            "inline constexpr int kNaked = 3;": "kNaked",
            "constexpr int kNaked[] = {1, 2};": "kNaked",
            "// an ordinary comment\nint naked();": "naked",
            "///\nint naked();": "naked",
            "/// Documented.\nint other();\n\nint naked();": "naked",
        }.items():
            self.assertEqual(self.names(free=free), [f"switchyard::{name}"], free)

    def test_public_members_are_found(self):
        for member, name in {
            "  int naked() const;": "naked",
            "  int naked() const { return 1; }": "naked",
            "  static constexpr int kNaked = 1;": "kNaked",
            "  explicit Documented(const char* name);": "Documented",
            "  struct Naked { int x; };": "Naked",
            "  bool operator<(const Documented&) const;": "operator<",
        }.items():
            self.assertEqual(self.names(member=member), [f"switchyard::Documented::{name}"], member)

    def test_struct_members(self):
        struct = "/// Documented.\nstruct S {\n  int x;\n%s};"
        both = "  void f();\n  void g();\n"
        self.assertEqual(self.names(free=struct % both), ["switchyard::S::f", "switchyard::S::g"])
        self.assertEqual(self.names(free=struct % "  void f();\n"), [])
        long = "  int f() { x = 1; return x; }\n  /// Documented.\n  void g();\n"
        self.assertEqual(self.names(free=struct % long), ["switchyard::S::f"])

    def test_documented_forms_pass(self):
        for free in ("/// Says it.\n// NOLINTNEXTLINE\nint f();", "int f();  ///< Says it.",
                     '/// Says it.\ninline const char* f() { return R"(int g();)"; }'):
            self.assertEqual(self.names(free=free), [], free)

    def test_the_command_fails_on_an_injected_function(self):
        with tempfile.TemporaryDirectory() as folder:
            header = pathlib.Path(folder) / "injected.h"
            header.write_text(HEADER % ("", "int naked();"))
            status, text = run(CMAKE / "check_docs.py", folder)
            self.assertEqual(status, 1)
            self.assertIn("function switchyard::naked has no /// doc comment", text)
            header.unlink()
            self.assertEqual(run(CMAKE / "check_docs.py", folder)[0], 1, "no header is not a pass")


class Sizes(unittest.TestCase):
    def status(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / name).write_text(text)
            return run(CMAKE / "sizes.py", folder, name)

    def test_limits(self):
        self.assertEqual(self.status("a.cc", "int x;\n" * 600)[0], 0)
        self.assertEqual(self.status("a.cc", "int x;\n" * 601)[0], 1)
        self.assertEqual(self.status("a.sh", "x\n" * 601)[0], 1)

    def test_long_function(self):
        body = "void f() {\n" + "  g();\n" * 99 + "}\n"
        status, text = self.status("a.cc", body)
        self.assertEqual(status, 1)
        self.assertIn("function f has 101 lines", text)
        self.assertEqual(self.status("a_cuda.cu", body)[0], 0)


class LibraryTexts(unittest.TestCase):
    """A text of the library names fields; flags are the command's."""
    FLAG = re.compile(r'"[^"\n]*(?<![\w-])--[a-z][a-z-]+[^"\n]*"')

    def flags_in(self, text):
        lines = (line.split("//")[0] for line in text.splitlines())
        return [line.strip() for line in lines if self.FLAG.search(line)]

    def test_the_library_names_no_flag(self):
        for path in sorted((ROOT / "src/switchyard").rglob("*")):
            if path.suffix in (".h", ".cc", ".cu"):
                self.assertEqual(self.flags_in(path.read_text()), [], path)

    def test_a_flag_is_seen(self):
        self.assertEqual(len(self.flags_in('require(ok, "use --parallel dep");')), 1)
        self.assertEqual(self.flags_in('--count;  // "--x"\nf("a--b", "-");'), [])


class Suites(unittest.TestCase):
    def test_agreement(self):
        text = "a_test cpu asan  # why\n\nb_test gpu\n"
        self.assertEqual(check_suites.faults_of(text, ["a_test", "b_test"]), [])

    def test_faults(self):
        for text, word in {
            "a_test cpu": "b_test is in no suite",
            "a_test cpu\nb_test cpu\nc_test cpu": "c_test is listed but",
            "a_test cpu\nb_test tpu": "suite 'tpu'",
            "a_test cpu\nb_test": "suite ''",
            "a_test cpu\nb_test cpu fast": "flag 'fast'",
            "a_test cpu\nb_test cpu\na_test gpu": "listed twice",
        }.items():
            faults = check_suites.faults_of(text, ["a_test", "b_test"])
            self.assertEqual(len(faults), 1, text)
            self.assertIn(word, faults[0])


class Fuzz(unittest.TestCase):
    def test_what_was_found_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            target = build / "tests/fuzz/fuzz_x"
            target.parent.mkdir(parents=True)
            target.write_text('#!/bin/sh\necho "Done 3 runs"\n')
            target.chmod(0o755)
            kept = build / "found/x/crash-1"
            kept.parent.mkdir(parents=True)
            kept.write_text("input")
            with unittest.mock.patch.object(fuzz, "BUILD", build):
                for _ in range(2):
                    self.assertEqual(fuzz.run("x", 1), ("x", True, ["Done 3 runs"]))
            self.assertEqual(kept.read_text(), "input")


class Scanner(unittest.TestCase):
    def test_function_spans(self):
        source = 'void f(int a = g({1})) noexcept {\n  auto s = "}";\n  // }\n}\nint x{3};\nT a::b() {\n}\n'
        found = [(d.kind, d.name, d.first_line, d.last_line) for d in cpp_scan.declarations(source)]
        self.assertEqual(found, [("function", "f", 1, 4), ("variable", "x", 5, 5),
                                 ("function", "b", 6, 7)])


if __name__ == "__main__":
    unittest.main()
