// A backend with device memory, like a GPU's, on top of another one: its addresses are invalid on the host,
// so code that reads or writes them without the backend crashes. Its streams can also delay their work, like
// a GPU's: code that does not wait for a stream, or lacks an event between two, reads or writes too early.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/kernels.h"

namespace shoal::test {

class FarBackend final : public Backend {
 public:
  // The streams that run work as soon as its events are complete. The others run it when the host waits for
  // it. By default all are eager, and updates are kernels.
  struct Eager {
    bool kernels = true, in = true, out = true, updates = true;
  };
  explicit FarBackend(std::unique_ptr<Backend> near, const Eager& eager = {true, true, true, true})
      : near_(std::move(near)) {
    queue(Stream::kernels).eager = eager.kernels;
    queue(Stream::copy_in).eager = eager.in;
    queue(Stream::copy_out).eager = eager.out;
    queue(kUpdates).eager = eager.updates;
  }
  ~FarBackend() override { run_all(); }
  std::string_view name() const override { return near_->name(); }
  Gpu gpu() const override { return near_->gpu(); }

  void* allocate(std::size_t bytes) override { return moved(near_->allocate(bytes)); }
  void release(void* data, std::size_t bytes) override {
    run_all();
    near_->release(moved(data), bytes);
  }
  void copy_to_host(void* host, const Tensor& from) override {
    run_all(Stream::kernels);
    near_->copy_to_host(host, near(from));
  }
  void copy_from_host(const Tensor& to, const void* host) override {
    const auto* bytes = static_cast<const std::byte*>(host);
    enqueue(Stream::kernels, [this, to = near(to), copy = std::vector<std::byte>(bytes, bytes + to.bytes())] {
      near_->copy_from_host(to, copy.data());
    });
  }
  void synchronize() override {
    run_all();
    near_->synchronize();
  }

  void* allocate_host(std::size_t bytes) override { return near_->allocate_host(bytes); }
  void release_host(void* data, std::size_t bytes) override {
    run_all();
    near_->release_host(data, bytes);
  }
  void copy_in(const Tensor& to, const void* host) override {
    enqueue(Stream::copy_in, [this, to = near(to), host] { near_->copy_in(to, host); });
  }
  void copy_out(void* host, const Tensor& from) override {
    enqueue(Stream::copy_out, [this, host, from = near(from)] { near_->copy_out(host, from); });
  }
  std::unique_ptr<Event> make_event() override {
    auto made = std::make_unique<Position>();
    made->near = near_->make_event();
    return made;
  }
  void record(Event& event, Stream stream) override {
    auto& position = static_cast<Position&>(event);
    enqueue(stream, [this, near = position.near, stream] { near_->record(*near, stream); });
    position = end_of(stream, position.near);
  }
  void wait(Stream stream, const Event& event) override {
    const auto& position = static_cast<const Position&>(event);
    enqueue(
        stream, [this, near = position.near, stream] { near_->wait(stream, *near); }, position);
  }
  void synchronize(const Event& event) override {
    const auto& position = static_cast<const Position&>(event);
    run_until(position.stream, position.count);
    near_->synchronize(*position.near);
  }
  bool can_capture() const override { return near_->can_capture(); }
  void begin_capture() override { near_->begin_capture(); }
  std::unique_ptr<CapturedGraph> end_capture() override { return near_->end_capture(); }
  bool is_device_memory(const void* data) const override {
    return (reinterpret_cast<std::uintptr_t>(data) & kFar) != 0;
  }

  void zero(const Tensor& x) override { call(&Backend::zero, x); }
  void zero_each(std::span<const Tensor> tensors) override {
    std::vector<Tensor> all;
    for (const Tensor& x : tensors) all.push_back(near(x));
    enqueue(Stream::kernels, [this, all] { near_->zero_each(all); });
  }
  void convert(const Tensor& out, const Tensor& x) override { call(&Backend::convert, out, x); }
  void add(const Tensor& out, const Tensor& x) override { call(&Backend::add, out, x); }
  void scale(const Tensor& out, const Tensor& x, float factor) override {
    call(&Backend::scale, out, x, factor);
  }
  void sum(const Tensor& total, const Tensor& x) override { call(&Backend::sum, total, x); }
  void sum_squares(const Tensor& totals, const Tensor& x) override { call(&Backend::sum_squares, totals, x); }
  void sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) override {
    call(&Backend::sum_rows, total, x, n);
  }
  void clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                  const Tensor& losses) override {
    call(&Backend::clip_scale, scale, squares, max_norm, losses);
  }
  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) override {
    call(&Backend::linear_forward, y, x, w, bias);
  }
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override {
    call(&Backend::linear_backward_input, dx, dy, w);
  }
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                              bool overwrite) override {
    call(&Backend::linear_backward_weight, dw, dbias, dy, x, overwrite);
  }
  void linear_gelu_forward(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                           const Tensor& bias, Gelu kind) override {
    call(&Backend::linear_gelu_forward, y, hidden, x, w, bias, kind);
  }
  void linear_gelu_backward(const Tensor& dhidden, const Tensor& dy, const Tensor& w, const Tensor& hidden,
                            Gelu kind, const Tensor& dbias) override {
    call(&Backend::linear_gelu_backward, dhidden, dy, w, hidden, kind, dbias);
  }
  bool gelu_backward_sums() const override { return near_->gelu_backward_sums(); }
  void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                         std::int64_t first_class, const Dropout& dropout, const Tensor& positions) override {
    call(&Backend::embedding_forward, out, tokens, wte, wpe, first_class, dropout, positions);
  }
  void embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout, const Tensor& tokens,
                          std::int64_t first_class, const Dropout& dropout) override {
    call(&Backend::embedding_backward, dwte, dwpe, dout, tokens, first_class, dropout);
  }
  void layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                         const Tensor& gamma, const Tensor& beta) override {
    call(&Backend::layernorm_forward, y, mean, rstd, x, gamma, beta);
  }
  void layernorm_backward(const LayerNormBackward& args) override {
    call(&Backend::layernorm_backward, args);
  }
  void residual_layernorm_forward(const ResidualLayerNorm& args) override {
    call(&Backend::residual_layernorm_forward, args);
  }
  void layernorm_residual_backward(const LayerNormResidualBackward& args) override {
    call(&Backend::layernorm_residual_backward, args);
  }
  bool norm_backward_sums() const override { return near_->norm_backward_sums(); }
  void residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                        const Dropout& dropout) override {
    call(&Backend::residual_forward, out, residual, branch, dropout);
  }
  void residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) override {
    call(&Backend::residual_backward, dbranch, dout, dropout);
  }
  void gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) override {
    call(&Backend::gelu_forward, y, x, kind);
  }
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) override {
    call(&Backend::gelu_backward, dx, dy, x, kind);
  }
  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                         const Dropout& dropout) override {
    call(&Backend::attention_forward, out, lse, qkv, first_head, dropout);
  }
  void attention_backward(const AttentionBackward& args) override {
    call(&Backend::attention_backward, args);
  }
  void attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                        const CacheRows& rows) override {
    call(&Backend::attention_cached, out, keys, values, qkv, rows);
  }
  void cross_entropy_stats(const CrossEntropy& args) override { call(&Backend::cross_entropy_stats, args); }
  void cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                             const Tensor& maximum) override {
    call(&Backend::cross_entropy_rescale, exp_sum, argmax, own, maximum);
  }
  void cross_entropy_loss(const CrossEntropy& args) override { call(&Backend::cross_entropy_loss, args); }
  void cross_entropy_backward(const CrossEntropy& args) override {
    call(&Backend::cross_entropy_backward, args);
  }
  void cross_entropy_train(const CrossEntropy& args) override { call(&Backend::cross_entropy_train, args); }
  void fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                   double stddev) override {
    call(&Backend::fill_normal, out, seed, name, first, stddev);
  }
  void fill(const Tensor& out, float value) override { call(&Backend::fill, out, value); }
  void adamw(const AdamWTensors& args, const AdamWSettings& settings) override {
    call(&Backend::adamw, args, settings);
  }
  // An update runs before the kernels that wait for it. Its settings are read after those before it.
  void adamw_later(const AdamWTensors& args, const AdamWSettings& settings, Event& done) override {
    if (queue(kUpdates).eager) return adamw(args, settings);
    struct Read {
      AdamWScalars scalars;
      float grad_scale;
    };
    const auto read = std::make_shared<Read>();
    enqueue(Stream::kernels, [read, settings = near(settings)] {
      *read = {*settings.scalars, settings.grad_scale ? *settings.grad_scale : 1.0f};
    });
    enqueue(
        kUpdates,
        [this, read, args = near(args), own = near(settings)]() mutable {
          own.scalars = &read->scalars;
          own.grad_scale = &read->grad_scale;
          near_->adamw(args, own);
        },
        end_of(Stream::kernels));
    auto& position = static_cast<Position&>(done);
    position = end_of(kUpdates, position.near);
  }
  void take_largest(const Tensor& taken, const Tensor& x) override { call(&Backend::take_largest, taken, x); }
  void add_taken(const Tensor& x, const Tensor& taken, float factor) override {
    call(&Backend::add_taken, x, taken, factor);
  }
  void take_int4(const Tensor& packed, const Tensor& x) override { call(&Backend::take_int4, packed, x); }
  void add_int4(const Tensor& x, const Tensor& packed) override { call(&Backend::add_int4, x, packed); }
  void muon_direction(const Tensor& direction, const Tensor& momentum,
                      const MuonSettings& settings) override {
    call(&Backend::muon_direction, direction, momentum, settings);
  }
  void muon_update(const MuonTensors& args, const MuonSettings& settings) override {
    call(&Backend::muon_update, args, settings);
  }
  void normalize(const Tensor& out, const Tensor& x, const Tensor& squares) override {
    call(&Backend::normalize, out, x, squares);
  }
  void transpose(const Tensor& out, const Tensor& x) override { call(&Backend::transpose, out, x); }
  void scale_and_add(const Tensor& x, float factor, const Tensor& y, float y_factor) override {
    call(&Backend::scale_and_add, x, factor, y, y_factor);
  }
  void set_symmetric_rows(const SymmetricRows& args) override { call(&Backend::set_symmetric_rows, args); }

 private:
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;

  // Converts a host address to a device address, or back.
  template <typename T>
  static T* moved(T* data) {
    return data ? reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) ^ kFar) : nullptr;
  }
  template <typename T>
  static const T& near(const T& other) {
    return other;
  }
  // The tensor with its host address instead of its device address.
  static Tensor near(const Tensor& x) { return {moved(x.data), x.dtype, x.shape}; }
  static Dropout near(Dropout x) {
    x.step = moved(x.step);
    return x;
  }
  static AdamWSettings near(AdamWSettings x) {
    x.grad_scale = moved(x.grad_scale);
    x.scalars = moved(x.scalars);
    return x;
  }
  static MuonSettings near(MuonSettings x) {
    x.lr = moved(x.lr);
    x.grad_scale = moved(x.grad_scale);
    return x;
  }
  static MuonTensors near(const MuonTensors& x) {
    return {near(x.weights), near(x.compute), near(x.direction)};
  }
  static SymmetricRows near(const SymmetricRows& x) {
    return {near(x.out), x.first, near(x.rows), x.factor, near(x.base), x.base_factor};
  }
  static LayerNormBackward near(const LayerNormBackward& x) {
    return {near(x.dx), near(x.dgamma), near(x.dbeta), near(x.dy),
            near(x.x),  near(x.gamma),  near(x.mean),  near(x.rstd)};
  }
  static ResidualLayerNorm near(const ResidualLayerNorm& x) {
    return {near(x.out),    near(x.y),       near(x.mean),  near(x.rstd), near(x.residual),
            near(x.branch), near(x.dropout), near(x.gamma), near(x.beta)};
  }
  static LayerNormResidualBackward near(const LayerNormResidualBackward& x) {
    return {near(x.norm), x.overwrite, near(x.dbranch), near(x.dropout), near(x.sums)};
  }
  static AttentionBackward near(const AttentionBackward& x) {
    return {near(x.dqkv), near(x.dout), near(x.out), near(x.lse), near(x.qkv), x.first_head, near(x.dropout)};
  }
  static CacheRows near(const CacheRows& x) { return {near(x.texts), near(x.positions), x.prompt}; }
  static CrossEntropy near(const CrossEntropy& x) {
    return {near(x.logits),  near(x.targets),      x.first_class,  x.valid,        near(x.maximum),
            near(x.exp_sum), near(x.target_logit), near(x.argmax), near(x.losses), near(x.dlogits),
            x.scale};
  }
  static AdamWTensors near(const AdamWTensors& x) {
    return {near(x.weights), near(x.compute), near(x.m), near(x.v), near(x.mean), near(x.grads)};
  }
  template <typename... Parameters, typename... Arguments>
  void call(void (Backend::*op)(Parameters...), const Arguments&... arguments) {
    enqueue(Stream::kernels, [this, op, values = std::tuple(near(arguments)...)] {
      std::apply([&](const auto&... x) { ((*near_).*op)(x...); }, values);
    });
  }

  // A position in a stream: after the first `count` pieces of work; and the event of the other backend.
  struct Position : Event {
    std::shared_ptr<Event> near = nullptr;
    Stream stream = Stream::kernels;
    std::int64_t count = 0;
  };
  struct Work {
    std::function<void()> run;
    Position after;
  };
  struct Queue {
    bool eager = true;
    std::int64_t queued = 0, done = 0;
    std::deque<Work> waiting;
  };
  // A queue of its own, of updates that may end later.
  static constexpr auto kUpdates = static_cast<Stream>(3);
  Position end_of(Stream stream, std::shared_ptr<Event> near = nullptr) {
    Position end;
    end.near = std::move(near);
    end.stream = stream;
    end.count = queue(stream).queued;
    return end;
  }
  Queue& queue(Stream stream) { return queues_[static_cast<std::size_t>(stream)]; }
  bool reached(const Position& position) { return queue(position.stream).done >= position.count; }

  void enqueue(Stream stream, std::function<void()> run) { enqueue(stream, std::move(run), Position{}); }
  void enqueue(Stream stream, std::function<void()> run, const Position& after) {
    auto& queue_of = queue(stream);
    ++queue_of.queued;
    queue_of.waiting.push_back({std::move(run), after});
    run_eagerly();
  }
  void run_first(Queue& of) {
    const auto work = std::move(of.waiting.front());
    of.waiting.pop_front();
    ++of.done;  // also when it throws
    work.run();
  }
  void run_eagerly() {
    for (bool any = true; any;) {
      any = false;
      for (auto& of : queues_) {
        for (; of.eager && !of.waiting.empty() && reached(of.waiting.front().after); any = true) {
          run_first(of);
        }
      }
    }
  }
  // Runs the first `count` pieces of the stream's work, and the work of other streams that they wait for.
  void run_until(Stream stream, std::int64_t count) {
    auto& of = queue(stream);
    while (of.done < count) {
      const Position after = of.waiting.front().after;
      if (reached(after)) {
        run_first(of);
        run_eagerly();
      } else {
        run_until(after.stream, after.count);
      }
    }
  }
  void run_all(Stream stream) { run_until(stream, queue(stream).queued); }
  void run_all() {
    for (const auto stream : {Stream::kernels, Stream::copy_in, Stream::copy_out, kUpdates}) run_all(stream);
  }

  std::unique_ptr<Backend> near_;
  std::array<Queue, 4> queues_;
};

}  // namespace shoal::test
