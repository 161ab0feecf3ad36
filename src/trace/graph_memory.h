// Memory that the CUDA graphs of a function and of its backward work in by turns. A graph's
// addresses are fixed, so that each would keep an arena of its own, of which all but one lie idle.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

#include "trace/gpu_graph.h"

namespace ingot::trace {

class GraphMemory {
  public:
    explicit GraphMemory(c10::Device device)
        : device_(device), turns_(make_gpu_graph_turns(device)) {}

    /// Arenas are this big from now on.
    void expect(std::int64_t bytes) { expected_ = std::max(expected_, bytes); }

    /// A graph whose work may lie in arena(); null where PyTorch has no CUDA.
    std::unique_ptr<GpuGraph> make_graph() const { return turns_ ? turns_->make_graph() : nullptr; }

    /// At least `bytes`, the same for all graphs while it is big enough; undefined for none. It
    /// lives as long as a graph holds it.
    std::shared_ptr<const at::Tensor> arena(std::int64_t bytes);

  private:
    c10::Device device_;
    std::shared_ptr<GpuGraphTurns> turns_;
    std::mutex mutex_;
    std::int64_t expected_ = 0;
    std::weak_ptr<const at::Tensor> arena_;
};

}  // namespace ingot::trace
