// CUDA graphs where PyTorch was built without CUDA: none. See gpu_graph.h.
#include "trace/gpu_graph.h"

namespace ingot::trace {

std::unique_ptr<GpuGraph> make_gpu_graph(c10::Device) { return nullptr; }

}  // namespace ingot::trace
