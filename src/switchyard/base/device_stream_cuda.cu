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

DeviceGraph::DeviceGraph(const DeviceStream& stream, const std::function<void()>& enqueue)
    : stream_(stream) {
  cudaGraph_t recorded = record(stream, enqueue);
  cudaGraphExec_t graph = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  cuda_check(status, "graph: instantiation");
  graph_ = graph;
  cudaEvent_t start = nullptr, end = nullptr;
  cuda_check(cudaEventCreate(&start), "graph: event");
  start_ = start;
  cuda_check(cudaEventCreate(&end), "graph: event");
  end_ = end;
}

DeviceGraph::~DeviceGraph() {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  cudaEventDestroy(static_cast<cudaEvent_t>(start_));
  cudaEventDestroy(static_cast<cudaEvent_t>(end_));
}

double DeviceGraph::run() {
  const cudaStream_t stream = handle_of(stream_);
  cuda_check(cudaEventRecord(static_cast<cudaEvent_t>(start_), stream), "graph: event");
  cuda_check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream), "graph: launch");
  cuda_check(cudaEventRecord(static_cast<cudaEvent_t>(end_), stream), "graph: event");
  cuda_check(cudaEventSynchronize(static_cast<cudaEvent_t>(end_)), "graph: run");
  float ms = 0;
  cuda_check(
      cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start_), static_cast<cudaEvent_t>(end_)),
      "graph: time");
  return 1000.0 * double(ms);
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
