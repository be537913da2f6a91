// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/json_text.h"

#include <array>
#include <unordered_set>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/mapped_file.h"

namespace switchyard::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxConfigBytes = 256u << 20;  // an index of a million names fits

/// Follows the parser's events and throws on the second key of one name in one object, and on what
/// is nested so deeply that copying, comparing or printing it, all recursive, exhausts the stack.
class Strictness {
 public:
  explicit Strictness(std::string_view where) : where_(where) {}

  void follow(json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      open_.emplace_back();
      require(open_.size() <= kMaxJsonDepth, where_, ": nests more than ", kMaxJsonDepth,
              " objects and lists; no such file needs that, fetch or write it again");
    } else if (event == Event::object_end || event == Event::array_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(open_.back().insert(key).second, where_, ": key '", show_name(key),
              "' appears twice in one object; the file is ambiguous, write it again");
    }
  }

 private:
  std::string_view where_;
  std::vector<std::unordered_set<std::string>> open_;  // a list's stays empty
};

/// The bare non-finite word that `text` starts with, or nothing.
std::string_view nonfinite_word(std::string_view text) {
  static constexpr std::array<std::string_view, 3> kWords = {"-Infinity", "Infinity", "NaN"};
  for (std::string_view word : kWords)
    if (text.starts_with(word)) return word;
  return {};
}

/// Puts bare non-finite words, outside strings, into quotes; an error's byte moves by two for each
/// one before it. Who reads a number there is then told of the word. One pass: such a word may
/// stand in the text a million times.
std::string without_nonfinite(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string_view word = in_string ? std::string_view{} : nonfinite_word(text.substr(i));
    if (!word.empty()) {
      out.append("\"").append(word).append("\"");
      i += word.size() - 1;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    out += text[i];
    if (in_string && text[i] == '\\' && i + 1 < text.size()) out += text[++i];
  }
  return out;
}

}  // namespace

json parse_json(std::string_view text, std::string_view where) {
  Strictness strictness(where);
  auto follow = [&](int, json::parse_event_t event, json& parsed) {
    strictness.follow(event, parsed);
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), follow);
  } catch (const json::parse_error& e) {
    throw UsageError(cat(where, ": is not valid UTF-8 JSON at byte ", e.byte,
                         "; the file is damaged or no JSON, fetch or write it again"));
  } catch (const json::exception&) {
    throw UsageError(cat(where, ": holds a number that no double can hold; write it again"));
  }
}

json read_config_file(const std::string& path) {
  json root = parse_json(without_nonfinite(read_text_file(path, kMaxConfigBytes)), path);
  require(root.is_object(), path, ": the top level is ", root.type_name(),
          ", must be an object; it is not a model's file of that name");
  return root;
}

std::string show_json(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string show_name(std::string_view name) {
  std::string out(name.substr(0, 200));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return name.size() > 200 ? out + "..." : out;
}

}  // namespace switchyard::checkpoint
