// SPDX-License-Identifier: Apache-2.0
// ggml: the experts of one layer as its models build them (three mul_mat_id, SwiGLU, weighted sum),
// with the repacked weight buffer where ggml has one for the type and the operation.
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cmath>
#include <stdexcept>

#include "bench/peers/peer_traffic.h"

namespace {

using peers::Shape;

ggml_type type_named(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i)
    if (ggml_type_name(ggml_type(i)) != nullptr && name == ggml_type_name(ggml_type(i)))
      return ggml_type(i);
  throw std::runtime_error("this ggml has no type " + name);
}

struct Context {
  ggml_context* value =
      ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead(), nullptr, true});
  ~Context() { ggml_free(value); }
};

/// The layer's graph over weights and activations that live in buffers of their own.
class Layer {
 public:
  Layer(const Shape& s, std::mt19937& random)
      : s_(s), backend_(ggml_backend_cpu_init()), type_(type_named(s.type)) {
    ggml_backend_cpu_set_n_threads(backend_, s.threads);
    gate_ = ggml_new_tensor_3d(weights_.value, type_, s.hidden, s.inter, s.experts);
    up_ = ggml_new_tensor_3d(weights_.value, type_, s.hidden, s.inter, s.experts);
    down_ = ggml_new_tensor_3d(weights_.value, type_, s.inter, s.hidden, s.experts);
    x_ = ggml_new_tensor_3d(io_.value, GGML_TYPE_F32, s.hidden, 1, s.tokens);
    ids_ = ggml_new_tensor_2d(io_.value, GGML_TYPE_I32, s.top_k, s.tokens);
    scale_ = ggml_new_tensor_3d(io_.value, GGML_TYPE_F32, 1, s.top_k, s.tokens);
    build();
    ggml_backend_buffer_type_t buffer = weight_buffer();
    note_ = ggml_backend_buft_name(buffer);
    if (!ggml_backend_alloc_ctx_tensors_from_buft(weights_.value, buffer) ||
        !ggml_backend_alloc_ctx_tensors_from_buft(io_.value, ggml_backend_cpu_buffer_type()))
      throw std::runtime_error("there is no memory for the layer");
    fill(random);
  }
  ~Layer() { ggml_backend_free(backend_); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const std::string& note() const { return note_; }
  void set_ids(const std::vector<int32_t>& ids) {
    ggml_backend_tensor_set(ids_, ids.data(), 0, ids.size() * 4);
  }
  void compute() {
    if (ggml_backend_graph_compute(backend_, graph_) != GGML_STATUS_SUCCESS)
      throw std::runtime_error("compute failed");
  }

  /// rel L2 of one choice's up projection against plain loops over the dequantised weights.
  double error(const std::vector<int32_t>& ids) {
    set_ids(ids);
    compute();
    std::vector<float> row(static_cast<size_t>(s_.hidden)), got(static_cast<size_t>(s_.inter));
    ggml_backend_tensor_get(up_out_, got.data(), 0, got.size() * 4);  // token 0, choice 0
    double difference = 0, size = 0;
    for (int64_t n = 0; n < s_.inter; ++n) {
      const size_t at =
          (size_t(ids[0]) * size_t(s_.inter) + size_t(n)) * ggml_row_size(type_, s_.hidden);
      dequantise(codes_.data() + at, row);
      double sum = 0;
      for (int64_t k = 0; k < s_.hidden; ++k) sum += double(row[size_t(k)]) * input_[size_t(k)];
      difference += (sum - got[size_t(n)]) * (sum - got[size_t(n)]);
      size += sum * sum;
    }
    return std::sqrt(difference / size);
  }

 private:
  void build() {
    ggml_context* c = io_.value;
    up_out_ = ggml_mul_mat_id(c, up_, x_, ids_);
    ggml_set_output(up_out_);
    ggml_tensor* gate = ggml_mul_mat_id(c, gate_, x_, ids_);
    ggml_tensor* rows = ggml_mul_mat_id(c, down_, ggml_swiglu_split(c, gate, up_out_), ids_);
    rows = ggml_mul(c, rows, scale_);
    ggml_tensor* out = nullptr;
    for (int64_t j = 0; j < s_.top_k; ++j) {
      ggml_tensor* choice =
          ggml_view_2d(c, rows, s_.hidden, s_.tokens, rows->nb[2], size_t(j) * rows->nb[1]);
      out = out == nullptr ? choice : ggml_add(c, out, choice);
    }
    if (s_.top_k == 1) out = ggml_cont(c, out);
    graph_ = ggml_new_graph(c);
    ggml_build_forward_expand(graph_, out);
  }

  /// The first of the CPU's own weight layouts that serves all three products.
  ggml_backend_buffer_type_t weight_buffer() {
    ggml_backend_dev_t device = ggml_backend_get_device(backend_);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    auto* extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts"));
    for (ggml_backend_buffer_type_t* at = extra != nullptr ? extra(device) : nullptr;
         at != nullptr && *at != nullptr; ++at)
      if (serves(device, *at)) return *at;
    return ggml_backend_cpu_buffer_type();
  }

  bool serves(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_t empty = ggml_backend_buft_alloc_buffer(type, 0);
    bool all = true;
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
      ggml_tensor* node = ggml_graph_node(graph_, i);
      if (node->op != GGML_OP_MUL_MAT_ID) continue;
      node->src[0]->buffer = empty;
      all = all && ggml_backend_dev_supports_op(device, node);
      node->src[0]->buffer = nullptr;
    }
    ggml_backend_buffer_free(empty);
    return all;
  }

  void fill(std::mt19937& random) {
    for (ggml_tensor* w : {gate_, down_, up_}) {
      const int64_t k = w->ne[0], rows = w->ne[1];
      codes_.resize(size_t(s_.experts * rows) * ggml_row_size(type_, k));
      for (int64_t e = 0; e < s_.experts; ++e) {
        const std::vector<float> values = peers::normals(rows * k, 1 / std::sqrt(float(k)), random);
        ggml_quantize_chunk(type_, values.data(),
                            codes_.data() + size_t(e * rows) * ggml_row_size(type_, k), 0, rows, k,
                            nullptr);
      }
      ggml_backend_tensor_set(w, codes_.data(), 0, codes_.size());
    }  // codes_ keeps those of up_
    input_ = peers::normals(s_.tokens * s_.hidden, 1, random);
    ggml_backend_tensor_set(x_, input_.data(), 0, input_.size() * 4);
    const std::vector<float> scales(size_t(s_.tokens * s_.top_k), 1 / float(s_.top_k));
    ggml_backend_tensor_set(scale_, scales.data(), 0, scales.size() * 4);
  }

  void dequantise(const char* from, std::vector<float>& to) const {
    ggml_get_type_traits(type_)->to_float(from, to.data(), int64_t(to.size()));
  }

  Shape s_;
  ggml_backend_t backend_;
  ggml_type type_;
  Context weights_, io_;
  ggml_tensor *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr, *x_ = nullptr, *ids_ = nullptr,
              *scale_ = nullptr;
  ggml_tensor* up_out_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  std::vector<char> codes_;
  std::vector<float> input_;
  std::string note_;
};

int run(const Shape& s) {
  std::mt19937 random(1);
  ggml_cpu_init();
  Layer layer(s, random);
  const double error = layer.error(peers::choose(s, random));
  const std::vector<double> times = peers::time_calls(
      s, random, [&](const std::vector<int32_t>& ids) { layer.set_ids(ids); },
      [&](const std::vector<int32_t>&) { layer.compute(); });
  peers::print_result(times, std::string("ggml ") + ggml_version(), "weights in " + layer.note(),
                      error);
  return error < 0.05 ? 0 : 1;  // its activations are quantised to 8 bits
}

}  // namespace

int main(int argc, char** argv) try {
  return run(peers::read_shape(argc, argv));
} catch (const std::exception& e) {
  std::fprintf(stderr, "ggml_peer: %s\n", e.what());
  return 1;
}
