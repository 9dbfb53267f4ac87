// Times the ops of any backend at the sizes of a model, whole batches long; meant for GPUs, whose kernels
// bench_ops cannot feed.
//   bench_backend_ops BACKEND [--model gpt2|gpt2-large|gpt2-xl|char384|tiny] [--type float32|bfloat16]
//                     [--stream float32|bfloat16] [--filter TEXT]
// --stream is the type of the residual stream and of gradients.
// A row: median milliseconds of an op, TFLOP/s and share of the measured peak, or GB/s of what has to be read
// and written once and share of the bandwidth of a large copy. On GPUs attention follows once more by each of
// the kernels that there are, as far as they go.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/philox.h"
#include "model/arena.h"
#include "ops/cuda/cuda.h"
#include "ops/make_backend.h"

using namespace shoal;

namespace {

struct Model {
  std::string name;
  std::int64_t batch, positions, heads, channels, classes, padded_classes;
  double dropout;
  std::int64_t rows() const { return batch * positions; }
  std::int64_t parameters() const { return 12 * channels * channels; }  // of a block
};

const std::vector<Model> kModels = {
    {"gpt2", 64, 1024, 12, 768, 50257, 50272, 0},
    {"gpt2-large", 16, 1024, 20, 1280, 50257, 50272, 0},
    {"gpt2-xl", 8, 1024, 25, 1600, 50257, 50272, 0},
    {"char384", 64, 256, 6, 384, 65, 80, 0.2},
    {"tiny", 1, 64, 2, 128, 65, 80, 0.2},
};

struct Cost {
  double flops = 0, bytes = 0;
};

class Bench {
 public:
  Bench(Backend& ops, const Model& model, DType type, DType stream, std::string filter)
      : ops_(ops), model_(model), type_(type), stream_type_(stream), filter_(std::move(filter)) {
    const std::uint32_t step = 1;
    const AdamWScalars scalars{.lr = 1e-4f, .correction1 = 1, .correction2 = 1, .commit = 1};
    ops.copy_from_host(step_, &step);
    ops.copy_from_host(adamw_scalars_, &scalars);
  }

  void run() {
    measure_ceilings();
    products();
    products_with_gelu();
    attention("");
    streams();
    loss();
    flat();
  }

  // On another backend.
  void attention_by(Backend& ops, const std::string& kernels) {
    Bench other(ops, model_, type_, stream_type_, filter_);
    other.peak_ = peak_;
    other.bandwidth_ = bandwidth_;
    try {
      other.attention(", " + kernels);
    } catch (const Error& error) {
      fmt::print("{}\n", error.what());
    }
  }

 private:
  static constexpr DType f32 = DType::f32;

  // Seconds of a call: the median of some rounds that are each long enough to hide the wait at their end.
  double measure(const std::function<void()>& call) {
    constexpr int kRounds = 3;
    constexpr double kSeconds = 0.03;
    call();
    ops_.synchronize();
    Stopwatch first;
    call();
    ops_.synchronize();
    const int calls = static_cast<int>(std::clamp(kSeconds / first.seconds(), 1.0, 500.0));
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      Stopwatch watch;
      for (int i = 0; i < calls; ++i) call();
      ops_.synchronize();
      times.push_back(watch.seconds() / calls);
    }
    std::sort(times.begin(), times.end());
    return times[kRounds / 2];
  }

  using Setup = std::function<std::function<void()>(Arena&)>;
  // `setup` takes its tensors from an arena: once to find out how large, and once with memory.
  void row(const std::string& op, const Cost& cost, const Setup& setup) {
    if (fmt::format("{} {}", op, name_of(type_)).find(filter_) == std::string::npos) return;
    Arena sizes;
    setup(sizes);
    Arena arena(ops_, sizes.used());
    const double seconds = measure(setup(arena));
    if (cost.flops > 0) {
      fmt::print("{:<34} {:9.3f} ms {:8.1f} TFLOP/s {:5.1f} % of peak\n", op, seconds * 1e3,
                 cost.flops / seconds * 1e-12, 100 * cost.flops / seconds / peak_);
    } else {
      fmt::print("{:<34} {:9.3f} ms {:8.1f} GB/s    {:5.1f} % of copy\n", op, seconds * 1e3,
                 cost.bytes / seconds * 1e-9, 100 * cost.bytes / seconds / bandwidth_);
    }
    std::fflush(stdout);
  }

  // Normal deviates; an arena that only measures gets none.
  Tensor normal(Arena& arena, DType type, Shape shape) {
    const Tensor x = arena.take(type, shape), values = type == f32 ? x : arena.take(f32, shape);
    if (!x) return x;
    ops_.fill_normal(values, 1, 2, 0, 1.0);
    if (type != f32) ops_.convert(x, values);
    return x;
  }
  Tensor classes(Arena& arena, Shape shape, std::int64_t below) {
    const Tensor x = arena.take(DType::i32, shape);
    if (!x) return x;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(x.count()));
    for (std::uint32_t i = 0; i < ids.size(); ++i) {
      const auto random = philox({1, 2}, {i, 0, 0, 0});
      // Some are much more frequent than others, as in text.
      const double unit = to_unit(random);
      ids[i] = static_cast<std::int32_t>(unit * unit * unit * static_cast<double>(below));
    }
    ops_.copy_from_host(x, ids.data());
    ops_.synchronize();
    return x;
  }

  void measure_ceilings() {
    peak_ = ops_.measure_peak_flops(type_);
    const Shape large{std::int64_t{1} << (model_.name == "tiny" ? 20 : 29)};
    Arena arena(ops_, 2 * static_cast<std::size_t>(large.count()) * sizeof(float));
    const Tensor from = arena.take(f32, large), to = arena.take(f32, large);
    ops_.fill_normal(from, 1, 2, 0, 1.0);
    bandwidth_ = 8 * static_cast<double>(large.count()) / measure([&] { ops_.convert(to, from); });
    fmt::print("{}, {} {}: peak {:.1f} TFLOP/s, copy {:.0f} GB/s\n", ops_.name(), model_.name, name_of(type_),
               peak_ * 1e-12, bandwidth_ * 1e-9);
  }

  void product(const std::string& name, std::int64_t rows, std::int64_t in, std::int64_t out, bool head) {
    const Cost cost{.flops = 2.0 * static_cast<double>(rows * in * out)};
    row(name + " forward", cost, [=, this](Arena& arena) {
      const Tensor y = arena.take(head ? plan_.type : type_, {rows, out}),
                   x = normal(arena, type_, {rows, in}), w = normal(arena, type_, {out, in}),
                   bias = head ? Tensor{} : normal(arena, type_, {out});
      return [=, this] { ops_.linear_forward(y, x, w, bias); };
    });
    row(name + " input's gradient", cost, [=, this](Arena& arena) {
      const Tensor dx = arena.take(type_, {rows, in}), dy = normal(arena, type_, {rows, out}),
                   w = normal(arena, type_, {out, in});
      return [=, this] { ops_.linear_backward_input(dx, dy, w); };
    });
    for (const bool with_bias : {false, true}) {
      if (head && with_bias) break;
      row(name + (with_bias ? " weight and bias" : " weight's gradient"), cost, [=, this](Arena& arena) {
        const Tensor dw = arena.take(f32, {out, in}), db = with_bias ? arena.take(f32, {out}) : Tensor{},
                     dy = normal(arena, type_, {rows, out}), x = normal(arena, type_, {rows, in});
        return [=, this] { ops_.linear_backward_weight(dw, db, dy, x, false); };
      });
    }
  }
  // The number of rows in a chunk of logits.
  std::int64_t head_rows() const { return std::min(model_.rows(), plan_.elements / model_.padded_classes); }
  void products() {
    const std::int64_t r = model_.rows(), c = model_.channels;
    product("qkv", r, c, 3 * c, false);
    product("attention out", r, c, c, false);
    product("mlp up", r, c, 4 * c, false);
    product("mlp down", r, 4 * c, c, false);
    product("head, chunk", head_rows(), c, model_.padded_classes, true);
  }

  // The MLP's products with GELU or its slope, for tanh by the fastest kernel and for erf by our own.
  void products_with_gelu() {
    const std::int64_t r = model_.rows(), c = model_.channels, f = 4 * c;
    const Cost cost{.flops = 2.0 * static_cast<double>(r * c * f)};
    for (const auto& [kind, name] : {std::pair{Gelu::tanh, "tanh"}, std::pair{Gelu::erf, "erf"}}) {
      row(fmt::format("mlp up, gelu {}", name), cost, [=, this, kind = kind](Arena& arena) {
        const Tensor y = arena.take(type_, {r, f}), hidden = arena.take(type_, {r, f}),
                     x = normal(arena, type_, {r, c}), w = normal(arena, type_, {f, c}),
                     bias = normal(arena, type_, {f});
        return [=, this] { ops_.linear_gelu_forward(y, hidden, x, w, bias, kind); };
      });
      row(fmt::format("mlp down input, gelu {} slope", name), cost, [=, this, kind = kind](Arena& arena) {
        const Tensor dx = arena.take(type_, {r, f}), hidden = normal(arena, type_, {r, f}),
                     dy = normal(arena, type_, {r, c}), w = normal(arena, type_, {c, f}),
                     sums = ops_.gelu_backward_sums() ? arena.take(f32, {f}) : Tensor{};
        return [=, this] { ops_.linear_gelu_backward(dx, dy, w, hidden, kind, sums); };
      });
    }
  }

  Dropout dropout(double p) const {
    return {.p = p,
            .seed = 1,
            .step = step_.as<std::uint32_t>(),
            .site = 1,
            .window = {.sequence = model_.positions}};
  }
  static std::string suffix(double p) { return p > 0 ? " dropout" : ""; }

  // Counts the visible half of the scores.
  void attention(const std::string& kernels) {
    const std::int64_t b = model_.batch, t = model_.positions, h = model_.heads, d = model_.channels / h;
    const double one = static_cast<double>(b * h * d * t * (t + 1));
    for (const double p : {0.0, 0.2}) {
      row("attention forward" + suffix(p) + kernels, {.flops = 2 * one}, [=, this](Arena& arena) {
        const Tensor qkv = normal(arena, type_, {b, t, 3, h, d}), out = arena.take(type_, {b, t, h, d}),
                     lse = arena.take(f32, {b, h, t});
        return [=, this] { ops_.attention_forward(out, lse, qkv, 0, dropout(p)); };
      });
      row("attention backward" + suffix(p) + kernels, {.flops = 5 * one}, [=, this](Arena& arena) {
        const Tensor qkv = normal(arena, type_, {b, t, 3, h, d}), out = arena.take(type_, {b, t, h, d}),
                     lse = arena.take(f32, {b, h, t}), dqkv = arena.take(type_, {b, t, 3, h, d}),
                     dout = normal(arena, type_, {b, t, h, d});
        if (out) ops_.attention_forward(out, lse, qkv, 0, dropout(p));
        return [=, this] {
          ops_.attention_backward(
              {.dqkv = dqkv, .dout = dout, .out = out, .lse = lse, .qkv = qkv, .dropout = dropout(p)});
        };
      });
    }
  }

  void streams() {
    const std::int64_t b = model_.batch, t = model_.positions, c = model_.channels, r = model_.rows(),
                       v = model_.padded_classes;
    const double n = static_cast<double>(r * c), size = static_cast<double>(size_of(type_)),
                 stream_size = static_cast<double>(size_of(stream_type_));
    const Shape stream{b, t, c}, rows{r, c}, wide{r, 4 * c};
    for (const double p : {0.0, 0.2}) {
      row("residual forward" + suffix(p), {.bytes = n * (2 * stream_size + size)}, [=, this](Arena& arena) {
        const Tensor out = arena.take(stream_type_, stream), x = normal(arena, stream_type_, stream),
                     y = normal(arena, type_, stream);
        return [=, this] { ops_.residual_forward(out, x, y, dropout(p)); };
      });
      row("residual backward" + suffix(p), {.bytes = n * (stream_size + size)}, [=, this](Arena& arena) {
        const Tensor to = arena.take(type_, stream), from = normal(arena, stream_type_, stream);
        return [=, this] { ops_.residual_backward(to, from, dropout(p)); };
      });
      row("residual, layernorm forward" + suffix(p), {.bytes = n * (2 * stream_size + 2 * size)},
          [=, this](Arena& arena) {
            const Tensor out = arena.take(stream_type_, stream), x = normal(arena, stream_type_, stream),
                         branch = normal(arena, type_, stream), y = arena.take(type_, rows),
                         mean = arena.take(f32, {r}), rstd = arena.take(f32, {r}),
                         gamma = normal(arena, type_, {c});
            return [=, this] {
              ops_.residual_layernorm_forward({.out = out,
                                               .y = y,
                                               .mean = mean,
                                               .rstd = rstd,
                                               .residual = x,
                                               .branch = branch,
                                               .dropout = dropout(p),
                                               .gamma = gamma,
                                               .beta = gamma});
            };
          });
      row("layernorm, residual backward" + suffix(p), {.bytes = n * (3 * stream_size + 2 * size)},
          [=, this](Arena& arena) {
            const Tensor dx = arena.take(stream_type_, stream), dbranch = arena.take(type_, stream),
                         dgamma = arena.take(stream_type_, {c}), dbeta = arena.take(stream_type_, {c}),
                         dy = normal(arena, type_, rows), x = normal(arena, stream_type_, rows),
                         gamma = normal(arena, type_, {c}), mean = normal(arena, f32, {r}),
                         rstd = normal(arena, f32, {r});
            return [=, this] {
              ops_.layernorm_residual_backward({.norm = {.dx = dx,
                                                         .dgamma = dgamma,
                                                         .dbeta = dbeta,
                                                         .dy = dy,
                                                         .x = x,
                                                         .gamma = gamma,
                                                         .mean = mean,
                                                         .rstd = rstd},
                                                .dbranch = dbranch,
                                                .dropout = dropout(p)});
            };
          });
    }
    row("embedding forward", {.bytes = stream_size * n}, [=, this](Arena& arena) {
      const Tensor out = arena.take(stream_type_, stream), tokens = classes(arena, {b, t}, model_.classes),
                   wte = normal(arena, type_, {v, c}), wpe = normal(arena, type_, {t, c});
      return [=, this] { ops_.embedding_forward(out, tokens, wte, wpe, 0, dropout(0)); };
    });
    row("embedding backward", {.bytes = stream_size * n}, [=, this](Arena& arena) {
      const Tensor dout = normal(arena, stream_type_, stream),
                   tokens = classes(arena, {b, t}, model_.classes), dwte = arena.take(stream_type_, {v, c}),
                   dwpe = arena.take(stream_type_, {t, c});
      return [=, this] { ops_.embedding_backward(dwte, dwpe, dout, tokens, 0, dropout(0)); };
    });
    row("layernorm forward", {.bytes = n * (stream_size + size)}, [=, this](Arena& arena) {
      const Tensor y = arena.take(type_, rows), mean = arena.take(f32, {r}), rstd = arena.take(f32, {r}),
                   x = normal(arena, stream_type_, rows), gamma = normal(arena, type_, {c});
      return [=, this] { ops_.layernorm_forward(y, mean, rstd, x, gamma, gamma); };
    });
    row("layernorm backward", {.bytes = n * (3 * stream_size + size)}, [=, this](Arena& arena) {
      const Tensor dx = arena.take(stream_type_, rows), dgamma = arena.take(stream_type_, {c}),
                   dbeta = arena.take(stream_type_, {c}), dy = normal(arena, type_, rows),
                   x = normal(arena, stream_type_, rows), gamma = normal(arena, type_, {c}),
                   mean = normal(arena, f32, {r}), rstd = normal(arena, f32, {r});
      return [=, this] {
        ops_.layernorm_backward({.dx = dx,
                                 .dgamma = dgamma,
                                 .dbeta = dbeta,
                                 .dy = dy,
                                 .x = x,
                                 .gamma = gamma,
                                 .mean = mean,
                                 .rstd = rstd});
      };
    });
    for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
      const std::string name = kind == Gelu::tanh ? "gelu tanh" : "gelu erf";
      row(name + " forward", {.bytes = 8 * n * size}, [=, this](Arena& arena) {
        const Tensor y = arena.take(type_, wide), x = normal(arena, type_, wide);
        return [=, this] { ops_.gelu_forward(y, x, kind); };
      });
      row(name + " backward", {.bytes = 12 * n * size}, [=, this](Arena& arena) {
        const Tensor dx = arena.take(type_, wide), x = normal(arena, type_, wide),
                     dy = normal(arena, type_, wide);
        return [=, this] { ops_.gelu_backward(dx, dy, x, kind); };
      });
    }
  }

  void loss() {
    const std::int64_t r = head_rows(), v = model_.padded_classes;
    const double n = static_cast<double>(r * v), size = static_cast<double>(size_of(type_)),
                 logit = static_cast<double>(size_of(plan_.type));
    struct Rows {
      Tensor logits, targets, maximum, exp_sum, target_logit, argmax;
    };
    const auto rows = [=, this](Arena& arena) {
      return Rows{normal(arena, plan_.type, {r, v}),
                  classes(arena, {r}, model_.classes),
                  arena.take(f32, {r}),
                  arena.take(f32, {r}),
                  arena.take(f32, {r}),
                  arena.take(DType::i32, {r})};
    };
    const auto stats = [this](const Rows& x) {
      ops_.cross_entropy_stats({.logits = x.logits,
                                .targets = x.targets,
                                .valid = model_.classes,
                                .maximum = x.maximum,
                                .exp_sum = x.exp_sum,
                                .target_logit = x.target_logit,
                                .argmax = x.argmax});
    };
    row("cross-entropy stats", {.bytes = logit * n},
        [=](Arena& arena) { return [=, x = rows(arena)] { stats(x); }; });
    row("cross-entropy backward", {.bytes = n * (logit + size)}, [=, this](Arena& arena) {
      const Rows x = rows(arena);
      const Tensor dlogits = arena.take(type_, {r, v});
      if (dlogits) stats(x);
      return [=, this] {
        ops_.cross_entropy_backward({.logits = x.logits,
                                     .targets = x.targets,
                                     .valid = model_.classes,
                                     .maximum = x.maximum,
                                     .exp_sum = x.exp_sum,
                                     .dlogits = dlogits,
                                     .scale = 1e-5f});
      };
    });
    row("cross-entropy, all of it", {.bytes = n * (logit + size)}, [=, this](Arena& arena) {
      const Rows x = rows(arena);
      const Tensor dlogits = arena.take(type_, {r, v}), losses = arena.take(f32, {r});
      return [=, this] {
        ops_.cross_entropy_train({.logits = x.logits,
                                  .targets = x.targets,
                                  .valid = model_.classes,
                                  .maximum = x.maximum,
                                  .exp_sum = x.exp_sum,
                                  .target_logit = x.target_logit,
                                  .argmax = x.argmax,
                                  .losses = losses,
                                  .dlogits = dlogits,
                                  .scale = 1e-5f});
      };
    });
  }

  void flat() {
    const Shape shape{model_.parameters()};
    const auto n = static_cast<double>(shape.count()), size = static_cast<double>(size_of(stream_type_));
    row("adamw, a block", {.bytes = n * (26 + size)}, [=, this](Arena& arena) {
      const Tensor w = normal(arena, f32, shape), m = arena.take(f32, shape), v = arena.take(f32, shape),
                   g = normal(arena, stream_type_, shape), copy = arena.take(DType::bf16, shape);
      return [=, this] {
        ops_.adamw({.weights = w, .compute = copy, .m = m, .v = v, .grads = g},
                   {.scalars = adamw_scalars_.as<AdamWScalars>()});
      };
    });
    row("sum of squares, a block", {.bytes = n * size}, [=, this](Arena& arena) {
      const Tensor x = normal(arena, stream_type_, shape), total = arena.take(DType::f64, {1});
      return [=, this] { ops_.sum_squares(total, x); };
    });
  }

  Backend& ops_;
  Model model_;
  DType type_, stream_type_;
  std::string filter_;
  LogitsPlan plan_ = logits_plan(backend_kind(ops_.name()).value(), type_);
  double peak_ = 1, bandwidth_ = 1;
  Arena scalars_{ops_, 128};
  Tensor step_ = scalars_.take(DType::i32, {1});
  Tensor adamw_scalars_ = scalars_.take(DType::i32, {sizeof(AdamWScalars) / sizeof(std::int32_t)});
};

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 2)
      fail_user("usage: {} BACKEND [--model NAME] [--type TYPE] [--stream TYPE] [--filter TEXT]", argv[0]);
    std::string model = "gpt2", type = "bfloat16", stream = "float32", filter;
    for (int i = 2; i + 1 < argc; i += 2) {
      const std::string option = argv[i];
      (option == "--model"    ? model
       : option == "--type"   ? type
       : option == "--stream" ? stream
                              : filter) = argv[i + 1];
    }
    const auto found =
        std::find_if(kModels.begin(), kModels.end(), [&](const auto& m) { return m.name == model; });
    if (found == kModels.end()) fail_user("there is no model {}", model);
    const auto kind = backend_kind(argv[1]);
    if (!kind) fail_user("there is no backend {}", argv[1]);
    const auto backend = make_backend(kind.value());
    const auto type_of = [](const std::string& text) {
      return text == "bfloat16" ? DType::bf16 : DType::f32;
    };
    Bench bench(*backend, *found, type_of(type), type_of(stream), filter);
    bench.run();
    if (backend->name() == "cuda") {
      for (const auto& [attention, ordered, name] : {std::tuple{AttentionKind::cudnn, true, "cuDNN ordered"},
                                                     {AttentionKind::cudnn, false, "cuDNN"},
                                                     {AttentionKind::tensor, true, "tensor"},
                                                     {AttentionKind::plain, true, "plain"}}) {
        bench.attention_by(*make_cuda_backend({.attention = attention, .ordered = ordered}), name);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return dynamic_cast<const UserError*>(&error) ? 2 : 1;
  }
}
