// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/json.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "switchyard/base/nearest.h"
#include "switchyard/resolve/json_fields.h"

namespace switchyard::resolve {
namespace {

using Json = nlohmann::json;

constexpr const char* kSchema = "switchyard.report.1";

// Enumerators whose texts exist only here, in the order of their values.
template <class E>
struct Texts;
template <>
struct Texts<ScoreFunction> {
  static constexpr std::array kAll = {"identity", "softmax", "sigmoid", "sqrt_softplus"};
};
template <>
struct Texts<ChoiceRule> {
  static constexpr std::array kAll = {"top_k", "hash", "sparse_mixer", "caller"};
};
template <>
struct Texts<GroupStatistic> {
  static constexpr std::array kAll = {"max", "top2_sum"};
};
template <>
struct Texts<WeightMap> {
  static constexpr std::array kAll = {"none",          "softmax_over_chosen",   "sigmoid",
                                      "divide_by_max", "divide_by_epsilon_sum", "lp_norm"};
};
template <>
struct Texts<WeightPlacement> {
  static constexpr std::array kAll = {"output", "input"};
};
template <>
struct Texts<GeluForm> {
  static constexpr std::array kAll = {"tanh", "erf"};
};

template <class E>
concept TextedHere = requires {
  Texts<E>::kAll;
};
template <class T>
concept Listed = requires(T& v) {
  Fields<T>::visit(v, [](const char*, auto&) {});
};

template <TextedHere E>
void parse(std::string_view word, E& out) {
  const auto& all = Texts<E>::kAll;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] == word) return void(out = E(i));
  throw UsageError(cat("'", word, "' is unknown; use one of ",
                       join(std::vector<std::string>(all.begin(), all.end()))));
}
void parse(std::string_view word, Dtype& out) { out = to_dtype(word); }
void parse(std::string_view word, Device& out) { out = to_device(word); }
void parse(std::string_view word, ActivationMode& out) { out = to_activation_mode(word); }
void parse(std::string_view word, CombinePrecision& out) { out = to_combine_precision(word); }
void parse(std::string_view word, RoutingMethodType& out) { out = to_routing_method(word); }
void parse(std::string_view word, Parallel& out) { out = to_parallel(word); }
void parse(std::string_view word, CpuIsa& out) { out = to_cpu_isa(word); }
void parse(std::string_view word, Reject& out) { out = to_reject(word); }
void parse(std::string_view word, SelectedBy& out) { out = to_selected_by(word); }

// Writing: one overload per kind of field.
class Writer {
 public:
  template <Listed T>
  static Json write(const T& value) {
    Json out = Json::object();
    Fields<T>::visit(value, [&](const char* name, const auto& field) { out[name] = write(field); });
    return out;
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  static Json write(T value) { return value; }
  template <class E>
  requires std::is_enum_v<E>
  static Json write(E value) {
    if constexpr (TextedHere<E>) {
      return Texts<E>::kAll.at(std::size_t(value));
    } else {
      return std::string(to_string(value));
    }
  }
  static Json write(const std::string& value) { return value; }
  template <class T>
  static Json write(const std::optional<T>& value) {
    return value ? write(*value) : Json(nullptr);
  }
  template <class T>
  static Json write(const std::vector<T>& values) {
    Json out = Json::array();
    for (const T& value : values) out.push_back(write(value));
    return out;
  }
  static Json write(const std::vector<std::pair<std::string, std::string>>& pairs) {
    Json out = Json::object();
    for (const auto& [key, value] : pairs) out[key] = value;
    return out;
  }
  static Json write(const PerExpert& constant) { return write(constant.values); }
  static Json write(const Activation& activation) {
    Json out = std::visit([](const auto& kind) { return write(kind); }, activation);
    out["kind"] = std::string(to_string(type_of(activation)));
    return out;
  }
};

// Reading: the same kinds; `path` names the key in messages.
class Reader {
 public:
  template <Listed T>
  static void read(const Json& json, const std::string& path, T& out,
                   std::set<std::string> known = {}) {
    require(json.is_object(), path, " is ", json.type_name(), ", an object is needed");
    Fields<T>::visit(out, [&](const char* name, auto& field) {
      known.insert(name);
      auto at = json.find(name);
      require(at != json.end(), path, " lacks key '", name, "'; all fields are needed");
      read(*at, path + "." + name, field);
    });
    for (const auto& [key, value] : json.items())
      require(known.contains(key), path, " has the unknown key '", key, "'; remove it");
  }
  static void read(const Json& json, const std::string& path, bool& out) {
    require(json.is_boolean(), path, " is ", json.dump(), ", true or false is needed");
    out = json.get<bool>();
  }
  template <std::integral T>
  requires(!std::is_same_v<T, bool>) static void read(const Json& json, const std::string& path,
                                                      T& out) {
    bool fits =
        json.is_number_integer() &&
        (!json.is_number_unsigned() || json.get<std::uint64_t>() <= std::uint64_t(INT64_MAX)) &&
        std::in_range<T>(json.get<std::int64_t>());
    require(fits, path, " is ", json.dump(), ", an integer of ", 8 * sizeof(T), " bits is needed");
    out = T(json.get<std::int64_t>());
  }
  static void read(const Json& json, const std::string& path, float& out) {
    require(json.is_number(), path, " is ", json.dump(), ", a number is needed");
    double value = json.get<double>();
    require(std::isfinite(value) && std::abs(value) <= 3.4028234663852886e38, path, " is ", value,
            ", which no 32-bit float holds");
    out = float(value);
  }
  static void read(const Json& json, const std::string& path, std::string& out) {
    require(json.is_string(), path, " is ", json.dump(), ", a string is needed");
    out = json.get<std::string>();
  }
  template <class E>
  requires std::is_enum_v<E>
  static void read(const Json& json, const std::string& path, E& out) {
    std::string word;
    read(json, path, word);
    try {
      parse(word, out);
    } catch (const UsageError& e) {
      throw UsageError(cat(path, ": ", e.what()));
    }
  }
  template <class T>
  static void read(const Json& json, const std::string& path, std::optional<T>& out) {
    out.reset();
    if (!json.is_null()) read(json, path, out.emplace());
  }
  template <class T>
  static void read(const Json& json, const std::string& path, std::vector<T>& out) {
    require(json.is_array(), path, " is ", json.type_name(), ", an array is needed");
    out.clear();
    for (const Json& item : json) read(item, cat(path, "[", out.size(), "]"), out.emplace_back());
  }
  static void read(const Json& json, const std::string& path,
                   std::vector<std::pair<std::string, std::string>>& out) {
    require(json.is_object(), path, " is ", json.type_name(), ", an object is needed");
    out.clear();
    for (const auto& [key, value] : json.items()) {
      out.emplace_back(key, "");
      read(value, path + "." + key, out.back().second);
    }
  }
  static void read(const Json& json, const std::string& path, PerExpert& out) {
    read(json, path, out.values);
  }
  static void read(const Json& json, const std::string& path, Activation& out) {
    require(json.is_object() && json.contains("kind"), path, " lacks key 'kind'");
    std::string kind;
    read(json["kind"], path + ".kind", kind);
    read_kind<0>(json, path, kind, out);
  }

 private:
  template <std::size_t i>
  static void read_kind(const Json& json, const std::string& path, const std::string& kind,
                        Activation& out) {
    if constexpr (i < std::variant_size_v<Activation>) {
      if (kind != to_string(ActivationType(i))) return read_kind<i + 1>(json, path, kind, out);
      read(json, path, out.emplace<i>(), {"kind"});
    } else {
      throw UsageError(cat(path, ".kind '", kind, "' is no activation"));
    }
  }
};

Json parse_text(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw UsageError(cat("text is no JSON: ", e.what()));
  }
}

template <class T>
T from_json(std::string_view text, const char* what) {
  T out;
  Reader::read(parse_text(text), what, out);
  return out;
}

}  // namespace

std::string to_json(const Report& report, int indent) {
  Json out = Writer::write(report);
  out["schema"] = kSchema;
  if (report.strategies.empty()) out.erase("strategies");
  return out.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const Problem& problem, int indent) {
  return Writer::write(problem).dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const Environment& env, int indent) {
  return Writer::write(env).dump(indent, ' ', false, Json::error_handler_t::replace);
}

Report report_from_json(std::string_view text) {
  Json json = parse_text(text);
  bool known = json.is_object() && json.value("schema", Json()) == kSchema;
  require(known, "report has no key schema = ", kSchema, "; it is of another version or no report");
  json.erase("schema");
  if (!json.contains("strategies")) json["strategies"] = Json::array();
  Report out;
  Reader::read(json, "report", out);
  return out;
}

Problem problem_from_json(std::string_view text) { return from_json<Problem>(text, "problem"); }

Environment environment_from_json(std::string_view text) {
  return from_json<Environment>(text, "environment");
}

}  // namespace switchyard::resolve
