#include "config/cluster_file.h"

#include <fmt/ranges.h>

#include <cmath>
#include <functional>
#include <map>

#include "config/toml_file.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

using Setter = std::function<void(const toml::node&)>;
using Keys = std::map<std::string, Setter, std::less<>>;

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  Cluster read() {
    const auto root = parse_toml_file(file_, "cluster", "; configs/clusters has examples");
    Cluster c;
    c.file = file_;
    read_table(root, "",
               {{"name", [&](const toml::node& node) { c.name = text(node); }},
                {"devices_per_host", integer(c.devices_per_host)},
                {"memory_gib", divisor(c.memory, 1 << 30)},
                {"device", table("device", {{"float32_tflops", divisor(c.peak_float32, 1e12)},
                                            {"tf32_tflops", divisor(c.peak_tf32, 1e12)},
                                            {"bfloat16_tflops", divisor(c.peak_bfloat16, 1e12)},
                                            {"memory_gb_s", divisor(c.bandwidth, 1e9)},
                                            {"processors", integer(c.processors)},
                                            {"launch_us", number(c.launch, 1e-6)},
                                            {"product", divisor(c.product, 1)},
                                            {"attention", divisor(c.attention, 1)},
                                            {"streaming", divisor(c.streaming, 1)}})},
                {"inside", link("inside", c.inside)},
                {"between", link("between", c.between)},
                {"measured", table("measured", {{"block_floor_us", number(c.measured.block_floor, 1e-6)},
                                                {"block_tflops", divisor(c.measured.block_flops, 1e12)},
                                                {"score_bytes", number(c.measured.score_bytes, 1)},
                                                {"activation_bytes", number(c.measured.activation_bytes, 1)},
                                                {"update_ns", number(c.measured.update, 1e-9)},
                                                {"message", link("measured.message", c.measured.message)},
                                                {"blocks", [&](const toml::node& node) {
                                                   blocks(node, c.measured.blocks);
                                                 }}})}});
    const auto need = [&](const char* key, double value) {
      if (!(value > 0)) fail_user("{}: {} is missing", file_, key);
    };
    need("memory_gib", c.memory);
    need("device.float32_tflops", c.peak_float32);
    need("device.bfloat16_tflops", c.peak_bfloat16);
    need("device.memory_gb_s", c.bandwidth);
    need("inside.gb_s", c.inside.bandwidth);
    if (c.name.empty()) c.name = std::filesystem::path(file_).stem().string();
    return c;
  }

 private:
  [[noreturn]] void fail_at(const toml::node& node, std::string_view problem) const {
    shoal::fail_at(file_, node, problem);
  }

  void read_table(const toml::table& from, const std::string& name, const Keys& keys) const {
    for (const auto& [key, node] : from) {
      const auto found = keys.find(key.str());
      if (found == keys.end()) {
        std::vector<std::string> known;
        for (const auto& [other, setter] : keys) known.push_back(other);
        const auto near = nearest(std::string(key.str()), known);
        fail_at(node, fmt::format("'{}' is not a key of {}; {}", key.str(),
                                  name.empty() ? "a cluster" : "[" + name + "]",
                                  near.empty() ? fmt::format("its keys are {}", fmt::join(known, ", "))
                                               : "did you mean " + near + "?"));
      }
      found->second(node);
    }
  }

  Setter table(std::string name, Keys keys) const {
    return [this, name = std::move(name), keys = std::move(keys)](const toml::node& node) {
      if (!node.is_table()) fail_at(node, name + " is a table");
      read_table(*node.as_table(), name, keys);
    };
  }
  Setter link(std::string name, ClusterLink& link) const {
    return table(std::move(name),
                 {{"latency_us", number(link.latency, 1e-6)}, {"gb_s", divisor(link.bandwidth, 1e9)}});
  }
  Setter number(double& to, double unit, bool above_0 = false) const {
    return [this, &to, unit, above_0](const toml::node& node) {
      const auto value = node.value<double>();
      if (!value || !std::isfinite(*value) || *value < 0 || (above_0 && *value == 0))
        fail_at(node, above_0 ? "this is a number above 0" : "this is a number, at least 0");
      to = *value * unit;
    };
  }
  Setter divisor(double& to, double unit) const { return number(to, unit, true); }
  Setter integer(int& to) const {
    return [this, &to](const toml::node& node) {
      const auto* value = node.as_integer();
      if (!value || value->get() < 1 || value->get() > (1 << 30))
        fail_at(node, "this is an integer, at least 1");
      to = static_cast<int>(value->get());
    };
  }
  std::string text(const toml::node& node) const {
    if (!node.is_string()) fail_at(node, "this is a text");
    return node.as_string()->get();
  }

  void blocks(const toml::node& node, std::vector<MeasuredBlock>& to) const {
    const auto* rows = node.as_array();
    if (!rows) fail_at(node, "blocks is an array of tables");
    for (const auto& row : *rows) {
      if (!row.is_table()) fail_at(row, "a measured block is a table");
      auto& block = to.emplace_back();
      read_table(*row.as_table(), "measured.blocks",
                 {{"n_embd", integer(block.n_embd)},
                  {"n_head", integer(block.n_head)},
                  {"block_size", integer(block.block_size)},
                  {"micro_batch", integer(block.micro_batch)},
                  {"tensor", integer(block.tensor)},
                  {"block_us", number(block.block, 1e-6)},
                  {"ends_us", number(block.ends, 1e-6)}});
      if (block.n_embd == 0 || block.n_head == 0 || block.block_size == 0 || block.micro_batch == 0 ||
          block.block <= 0)
        fail_at(row, "a measured block needs n_embd, n_head, block_size, micro_batch and block_us");
    }
  }

  std::string file_;
};

}  // namespace

Cluster read_cluster(const std::filesystem::path& file) { return Reader(file.string()).read(); }

}  // namespace shoal
