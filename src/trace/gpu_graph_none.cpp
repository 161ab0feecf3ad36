// CUDA graphs where PyTorch was built without CUDA: none. See gpu_graph.h.
#include "ir/error.h"
#include "trace/gpu_graph.h"

namespace ingot::trace {

std::shared_ptr<GpuGraphTurns> make_gpu_graph_turns(c10::Device) { return nullptr; }

std::shared_ptr<runtime::RecordedMemory> record_gpu_work(c10::Device, const std::function<void()>&,
                                                         const std::function<void(void*)>&) {
    return nullptr;
}

void run_on_gpu_stream(c10::Device, void*, const std::function<void()>&) {
    throw NotSupported("this PyTorch was built without CUDA");
}

}  // namespace ingot::trace
