// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_check.h"
#include "switchyard/base/device_stream.h"

namespace switchyard {
namespace {

cudaStream_t handle_of(const DeviceStream& s) { return static_cast<cudaStream_t>(s.get().handle); }

cudaGraph_t record(const DeviceStream& stream, const std::function<void()>& enqueue) {
  cuda_check(cudaStreamBeginCapture(handle_of(stream), cudaStreamCaptureModeThreadLocal),
             "graph: begin of capture");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(handle_of(stream), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    static_cast<void>(cudaGetLastError());
    throw;
  }
  cuda_check(cudaStreamEndCapture(handle_of(stream), &graph), "graph: end of capture");
  return graph;
}

/// Owns the event that a time begins or ends with.
class Event {
 public:
  Event() { cuda_check(cudaEventCreate(&event_), "event: creation"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Owns a recorded graph in the form that is launched.
class Executable {
 public:
  /// Takes `recorded` over.
  explicit Executable(cudaGraph_t recorded) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, recorded, 0);
    cudaGraphDestroy(recorded);
    cuda_check(status, "graph: instantiation");
  }
  ~Executable() { cudaGraphExecDestroy(graph_); }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  cudaGraphExec_t get() const { return graph_; }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

DeviceStream::DeviceStream() {
  cudaStream_t stream = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream: creation");
  handle_ = stream;
}

DeviceStream::~DeviceStream() { cudaStreamDestroy(handle_of(*this)); }

void DeviceStream::wait() const {
  cuda_check(cudaStreamSynchronize(handle_of(*this)), "stream: wait for its work");
}

/// Members that are built before one fails are given back.
struct DeviceGraph::Work {
  Work(const DeviceStream& on, const std::function<void()>& enqueue)
      : stream(handle_of(on)), graph(record(on, enqueue)) {
    // Else the first launch does it, and may wait there for kernels that wait for another rank's.
    cuda_check(cudaGraphUpload(graph.get(), stream), "graph: upload");
    on.wait();
  }

  cudaStream_t stream;
  Executable graph;
  Event start, end;
};

DeviceGraph::DeviceGraph(const DeviceStream& stream, const std::function<void()>& enqueue)
    : work_(std::make_unique<Work>(stream, enqueue)) {}

DeviceGraph::~DeviceGraph() = default;

double DeviceGraph::run() {
  const Work& w = *work_;
  cuda_check(cudaEventRecord(w.start.get(), w.stream), "graph: event");
  cuda_check(cudaGraphLaunch(w.graph.get(), w.stream), "graph: launch");
  cuda_check(cudaEventRecord(w.end.get(), w.stream), "graph: event");
  cuda_check(cudaEventSynchronize(w.end.get()), "graph: run");
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, w.start.get(), w.end.get()), "graph: time");
  return double(ms) * 1e3;
}

double eager_us(const DeviceStream& stream, const std::function<void()>& enqueue) {
  const Event start, end;
  cuda_check(cudaEventRecord(start.get(), handle_of(stream)), "event: record");
  enqueue();
  cuda_check(cudaEventRecord(end.get(), handle_of(stream)), "event: record");
  cuda_check(cudaEventSynchronize(end.get()), "event: wait");
  float ms = 0;
  cuda_check(cudaEventElapsedTime(&ms, start.get(), end.get()), "event: time");
  return 1000.0 * double(ms);
}

}  // namespace switchyard
