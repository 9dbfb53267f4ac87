#include "planner/distribution.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace shoal {

Units time_units() { return {{"us", 1e-3}, {"ms", 1}, {"s", 1e3}}; }
Units bandwidth_units() { return {{"kbit", 1e-3}, {"mbit", 1}, {"gbit", 1e3}}; }

// sum = product { "+" product };  product = atom { "*" atom };  atom = number | name "(" ... ")" | "(" sum
// ")"
class DistributionParser {
 public:
  using Kind = Distribution::Kind;
  DistributionParser(std::string_view text, const Units& units, Distribution& out)
      : text_(text), units_(units), out_(out) {}

  void parse() {
    out_.root_ = sum();
    if (peek() != '\0') refuse("nothing more was expected");
  }

 private:
  using Node = Distribution::Node;
  static constexpr int kDeepest = 100;

  [[noreturn]] void refuse(std::string_view what) const {
    fail_user("'{}', at character {}: {}", text_, at_ + 1, what);
  }
  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse(fmt::format("'{}' was expected", c));
  }
  int add(Node node) {
    out_.nodes_.push_back(std::move(node));
    return static_cast<int>(out_.nodes_.size()) - 1;
  }

  int sum() {
    if (++depth_ > kDeepest) refuse("this is nested too deeply");
    const int node =
        several(Kind::sum, '+', [this] { return several(Kind::product, '*', [this] { return atom(); }); });
    --depth_;
    return node;
  }

  template <typename Next>
  int several(Kind kind, char sign, Next next) {
    Node node{.kind = kind, .children = {{1, next()}}};
    while (take(sign)) node.children.emplace_back(1, next());
    return node.children.size() == 1 ? node.children[0].second : add(std::move(node));
  }

  // A number, with its unit if it has one.
  double number(bool with_unit = true) {
    peek();
    double value = 0;
    const auto* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || !std::isfinite(value)) refuse("a number was expected");
    if (value < 0) refuse("negative numbers have no meaning here");
    at_ += static_cast<std::size_t>(end - begin);
    const auto unit_at = at_;
    const auto suffix = name();
    if (suffix.empty()) return value;
    for (const auto& [unit, factor] : units_) {
      if (with_unit && unit == suffix) return value * factor;
    }
    at_ = unit_at;
    std::string known;
    for (const auto& [unit, factor] : units_) known += fmt::format("{}{}", known.empty() ? "" : ", ", unit);
    refuse(with_unit ? fmt::format("'{}' is not a unit; there are {}", suffix, known)
                     : "this number has no unit");
  }

  std::string_view name() {
    peek();
    const auto begin = at_;
    while (at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  int atom() {
    if (take('(')) {
      const int inner = sum();
      expect(')');
      return inner;
    }
    if (!std::isalpha(static_cast<unsigned char>(peek()))) return add({Kind::number, number(), 0, {}});
    const auto name_at = at_;
    const auto function = name();
    const auto node = call(function, name_at);
    expect(')');
    return node;
  }

  int call(std::string_view function, std::size_t name_at) {
    struct TwoNumbers {
      std::string_view name;
      Kind kind;
    };
    static constexpr TwoNumbers kTwo[] = {
        {"normal", Kind::normal}, {"uniform", Kind::uniform}, {"lognormal", Kind::lognormal}};
    for (const auto& [known, kind] : kTwo) {
      if (known == function) return two_numbers(kind);
    }
    if (function == "exp") return expect('('), add({Kind::exponential, number(), 0, {}});
    if (function == "each") return expect('('), add({Kind::each, 0, 0, {{1, sum()}}});
    if (function == "mix") return mix();
    if (function == "at") return at_one();
    at_ = name_at;
    refuse(fmt::format(
        "'{}' is not a distribution; there are normal, uniform, exp, lognormal, mix, each and at", function));
  }

  int two_numbers(Kind kind) {
    expect('(');
    const double first = number();
    expect(',');
    const double second = number(kind != Kind::lognormal);
    if (kind == Kind::uniform && second < first) refuse("uniform(LOW, HIGH) goes upwards");
    return add({kind, first, second, {}});
  }

  int mix() {
    expect('(');
    Node node{.kind = Kind::mix};
    double total = 0;
    do {
      const double probability = number(false);
      expect(':');
      total += probability;
      node.children.emplace_back(probability, sum());
    } while (take(','));
    if (std::abs(total - 1) > 1e-6)
      refuse(fmt::format("the probabilities of mix add up to {:g}, not to 1", total));
    return add(std::move(node));
  }

  int at_one() {
    expect('(');
    Node node{.kind = Kind::at, .value = number(false)};
    expect(':');
    node.children.emplace_back(1, sum());
    expect(',');
    node.children.emplace_back(1, sum());
    return add(std::move(node));
  }

  std::string_view text_;
  const Units& units_;
  Distribution& out_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

Distribution::Distribution(double number) { nodes_.push_back({Kind::number, number, 0, {}}); }

Distribution::Distribution(std::string_view text, const Units& units, std::uint32_t purpose)
    : purpose_(purpose) {
  DistributionParser(text, units, *this).parse();
}

double Distribution::draw(PhiloxKey key, int who, std::int64_t step) const {
  return draw(root_, key, static_cast<std::uint32_t>(who), static_cast<std::uint32_t>(step));
}

bool Distribution::varies() const { return varies(root_); }

bool Distribution::varies(int index) const {
  const auto& node = nodes_[index];
  if (node.kind == Kind::number || node.kind == Kind::each) return false;
  return node.children.empty() ||  // a distribution of its own
         node.kind == Kind::mix ||
         std::ranges::any_of(node.children, [&](const auto& child) { return varies(child.second); });
}

double Distribution::draw(int index, PhiloxKey key, std::uint32_t who, std::uint32_t step) const {
  constexpr std::uint32_t kNoStep = 0xffffffff;
  const auto& node = nodes_[index];
  const auto block = [&] { return philox(key, {who, step, static_cast<std::uint32_t>(index), purpose_}); };
  const auto child = [&](std::size_t i) { return draw(node.children[i].second, key, who, step); };
  switch (node.kind) {
    case Kind::number:
      return node.value;
    case Kind::sum: {
      double sum = 0;
      for (std::size_t i = 0; i < node.children.size(); ++i) sum += child(i);
      return sum;
    }
    case Kind::product: {
      double product = 1;
      for (std::size_t i = 0; i < node.children.size(); ++i) product *= child(i);
      return product;
    }
    case Kind::normal:
      return std::max(0.0, node.value + node.spread * to_normal(block()));
    case Kind::uniform:
      return node.value + (node.spread - node.value) * to_unit(block());
    case Kind::exponential:
      return -node.value * std::log1p(-to_unit(block()));
    case Kind::lognormal:
      return node.value * std::exp(node.spread * to_normal(block()));
    case Kind::mix: {
      double u = to_unit(block());
      for (std::size_t i = 0; i + 1 < node.children.size(); ++i) {
        if (u < node.children[i].first) return child(i);
        u -= node.children[i].first;
      }
      return child(node.children.size() - 1);
    }
    case Kind::each:
      return draw(node.children[0].second, key, who, kNoStep);
    case Kind::at:
      return child(static_cast<double>(who) == node.value ? 0 : 1);
  }
  return 0;
}

}  // namespace shoal
