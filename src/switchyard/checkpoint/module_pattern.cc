// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/module_pattern.h"

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"

namespace switchyard::checkpoint {
namespace {

constexpr std::size_t kMaxLength = 2000;
constexpr int kMaxDepth = 50;

std::bitset<256> range(unsigned char low, unsigned char high) {
  std::bitset<256> out;
  for (int c = low; c <= high; ++c) out.set(std::size_t(c));
  return out;
}

std::bitset<256> word_set() {
  return range('a', 'z') | range('A', 'Z') | range('0', '9') | range('_', '_');
}

}  // namespace

/// Recursive descent; each part is built so that it goes on to a step that is already there, hence
/// from the last part to the first.
class PatternParser {
 public:
  PatternParser(std::string_view text, std::string_view where, ModulePattern& out)
      : text_(text), where_(where), out_(out) {}

  void run() {
    if (text_.size() > kMaxLength) refuse("more than 2000 characters");
    std::size_t last = add({.op = ModulePattern::Op::kMatch, .set = {}, .next = 0, .other = 0});
    Node root = alternation(0);
    if (at_ != text_.size()) refuse("an unmatched ')'");
    out_.start_ = emit(root, last);
  }

 private:
  using Step = ModulePattern::Step;
  using Op = ModulePattern::Op;
  struct Node {
    enum class Kind : std::uint8_t { kSet, kBegin, kEnd, kChain, kEither, kRepeat } kind;
    std::bitset<256> set{};
    char count = 0;  // '*', '+' or '?'
    std::vector<Node> parts{};
  };

  static Node node(Node::Kind kind) { return {.kind = kind, .set = {}, .count = 0, .parts = {}}; }
  static Node set_node(std::bitset<256> set) {
    return {.kind = Node::Kind::kSet, .set = set, .count = 0, .parts = {}};
  }
  static Node repeated(char count, Node part) {
    return {.kind = Node::Kind::kRepeat, .set = {}, .count = count, .parts = {std::move(part)}};
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw UsageError(cat(where_, ": the regular expression '", show_name(text_), "' holds ", what,
                         ", which is not served; list names, or a simpler expression"));
  }

  bool more() const { return at_ < text_.size(); }

  Node alternation(int depth) {
    if (depth > kMaxDepth) refuse("more than 50 nested groups");
    Node out = node(Node::Kind::kEither);
    do {
      out.parts.push_back(chain(depth));
    } while (more() && text_[at_] == '|' && ++at_);
    return out;
  }

  Node chain(int depth) {
    Node out = node(Node::Kind::kChain);
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      Node part = atom(depth);
      while (more() && std::string_view("*+?").find(text_[at_]) != std::string_view::npos)
        part = repeated(text_[at_++], std::move(part));
      out.parts.push_back(std::move(part));
    }
    return out;
  }

  Node atom(int depth) {
    char c = text_[at_++];
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return set_node(bracket());
      case '.':
        return set_node(~range('\n', '\n'));
      case '^':
        return node(Node::Kind::kBegin);
      case '$':
        return node(Node::Kind::kEnd);
      case '\\':
        return set_node(escape());
      case '{':
        refuse("a counted repetition");
      case '*':
      case '+':
      case '?':
        refuse("a repetition of nothing");
      default:
        return set_node(range(byte(c), byte(c)));
    }
  }

  Node group(int depth) {
    if (text_.substr(at_).starts_with("?:"))
      at_ += 2;
    else if (more() && text_[at_] == '?')
      refuse("a group of the kind (?...)");
    Node out = alternation(depth + 1);
    if (!more() || text_[at_] != ')') refuse("an unmatched '('");
    ++at_;
    return out;
  }

  std::bitset<256> escape() {
    if (!more()) refuse("a lone backslash at its end");
    char c = text_[at_++];
    auto space = range(' ', ' ') | range('\t', '\r');
    switch (c) {
      case 'd':
        return range('0', '9');
      case 'D':
        return ~range('0', '9');
      case 'w':
        return word_set();
      case 'W':
        return ~word_set();
      case 's':
        return space;
      case 'S':
        return ~space;
      default:
        if (word_set().test(byte(c))) refuse(cat("the escape \\", c));
        return range(byte(c), byte(c));
    }
  }

  std::bitset<256> bracket() {
    std::bitset<256> out;
    bool negated = more() && text_[at_] == '^';
    if (negated) ++at_;
    for (bool first = true; more() && (first || text_[at_] != ']'); first = false) {
      char low = text_[at_++];
      if (low == '\\') {
        out |= escape();
      } else if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        char high = text_[at_ + 1];
        if (byte(high) < byte(low)) refuse("a class with a reversed range");
        out |= range(byte(low), byte(high));
        at_ += 2;
      } else {
        out.set(byte(low));
      }
    }
    if (!more()) refuse("an unmatched '['");
    ++at_;
    return negated ? ~out : out;
  }

  static unsigned char byte(char c) { return static_cast<unsigned char>(c); }

  std::size_t add(Step step) {
    out_.steps_.push_back(step);
    return out_.steps_.size() - 1;
  }

  std::size_t emit(const Node& n, std::size_t next) {
    switch (n.kind) {
      case Node::Kind::kSet:
        return add({.op = Op::kSet, .set = n.set, .next = next, .other = 0});
      case Node::Kind::kBegin:
        return add({.op = Op::kBegin, .set = {}, .next = next, .other = 0});
      case Node::Kind::kEnd:
        return add({.op = Op::kEnd, .set = {}, .next = next, .other = 0});
      case Node::Kind::kChain:
        for (std::size_t i = n.parts.size(); i-- > 0;) next = emit(n.parts[i], next);
        return next;
      case Node::Kind::kEither: {
        std::size_t out = emit(n.parts.back(), next);
        for (std::size_t i = n.parts.size() - 1; i-- > 0;)
          out = add({.op = Op::kSplit, .set = {}, .next = emit(n.parts[i], next), .other = out});
        return out;
      }
      case Node::Kind::kRepeat:
        return repeat(n, next);
    }
    throw InternalError("a part of a regular expression has no kind");
  }

  std::size_t repeat(const Node& n, std::size_t next) {
    if (n.count == '?')
      return add({.op = Op::kSplit, .set = {}, .next = emit(n.parts[0], next), .other = next});
    std::size_t loop = add({.op = Op::kSplit, .set = {}, .next = next, .other = next});
    std::size_t body = emit(n.parts[0], loop);
    out_.steps_[loop].next = body;
    return n.count == '*' ? loop : body;
  }

  std::string_view text_, where_;
  std::size_t at_ = 0;
  ModulePattern& out_;
};

ModulePattern::ModulePattern(std::string_view expression, std::string_view where) {
  PatternParser(expression, where, *this).run();
}

void ModulePattern::follow(std::size_t at, std::size_t position, std::size_t size,
                           std::vector<bool>& seen, std::vector<std::size_t>& states) const {
  std::vector<std::size_t> todo = {at};
  while (!todo.empty()) {
    std::size_t i = todo.back();
    todo.pop_back();
    if (seen[i]) continue;
    seen[i] = true;
    const Step& s = steps_[i];
    if (s.op == Op::kSet || s.op == Op::kMatch) states.push_back(i);
    if (s.op == Op::kSplit) todo.insert(todo.end(), {s.next, s.other});
    if ((s.op == Op::kBegin && position == 0) || (s.op == Op::kEnd && position == size))
      todo.push_back(s.next);
  }
}

bool ModulePattern::match(std::string_view text) const {
  std::vector<std::size_t> states, next;
  std::vector<bool> seen(steps_.size());
  follow(start_, 0, text.size(), seen, states);
  for (std::size_t position = 0;; ++position) {
    next.clear();
    seen.assign(steps_.size(), false);
    for (std::size_t i : states) {
      const Step& s = steps_[i];
      if (s.op == Op::kMatch) return true;
      if (position < text.size() && s.set.test(static_cast<unsigned char>(text[position])))
        follow(s.next, position + 1, text.size(), seen, next);
    }
    if (position >= text.size() || next.empty()) return false;
    states.swap(next);
  }
}

}  // namespace switchyard::checkpoint
