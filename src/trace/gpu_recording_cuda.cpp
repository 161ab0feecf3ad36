// Recording of a GPU's work that is only read; see gpu_graph.h. Built only where PyTorch has CUDA.
//
// Not through PyTorch's own graphs: while one of these is recorded, random numbers on any thread
// are refused.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>

#include "ir/error.h"
#include "trace/gpu_graph.h"

namespace ingot::trace {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void require(cudaError_t result, const char* what) {
    if (result == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    throw Error(std::string("CUDA: ") + what + ": " + cudaGetErrorName(result));
}

/// Newer allocators want to know when a stream is being recorded.
template <class Allocator>
void mark_capture(Allocator* a, c10::DeviceIndex device, bool begins) {
    if constexpr (requires { a->markCaptureBegin(device); }) {
        if (begins)
            a->markCaptureBegin(device);
        else
            a->markCaptureEnd(device);
    }
}

/// A stream to record on, which nobody else uses, with memory of its own. Recordings of one place
/// are carried out on one stream, so that they can share that memory.
class Place final : public runtime::RecordedMemory {
  public:
    explicit Place(c10::DeviceIndex device)
        : device_(device), pool_(at::cuda::graph_pool_handle()) {
        require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    }
    ~Place() override {
        // Work that uses the memory may be under way: the allocator waits before it frees a pool.
        static_cast<void>(cudaStreamDestroy(stream_));
        for (; uses_ > 0; --uses_) allocator::releasePool(device_, pool_);
    }

    void record(const std::function<void()>& work, const std::function<void(void*)>& read) {
        const std::lock_guard lock(recording_);
        const c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromExternal(stream_, device_));
        allocator::beginAllocateToPool(device_, pool_,
                                       [this](cudaStream_t s) { return s == stream_; });
        ++uses_;
        const Directed directed{*this};
        require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                "recording calls");
        cudaGraph_t graph = nullptr;
        try {
            const Marked marked{*this};
            work();
        } catch (...) {
            static_cast<void>(cudaStreamEndCapture(stream_, &graph));
            static_cast<void>(cudaGetLastError());
            if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
            throw;
        }
        require(cudaStreamEndCapture(stream_, &graph), "recording calls");
        const auto destroy = [](cudaGraph_t g) { static_cast<void>(cudaGraphDestroy(g)); };
        const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(destroy)> owned(graph,
                                                                                           destroy);
        read(graph);
    }

  private:
    struct Directed {
        Place& place;
        ~Directed() { allocator::endAllocateToPool(place.device_, place.pool_); }
    };
    struct Marked {
        explicit Marked(Place& p) : place(p) { mark_capture(allocator::get(), p.device_, true); }
        Marked(const Marked&) = delete;
        Marked& operator=(const Marked&) = delete;
        ~Marked() { mark_capture(allocator::get(), place.device_, false); }
        Place& place;
    };

    c10::DeviceIndex device_;
    c10::MempoolId_t pool_;
    cudaStream_t stream_ = nullptr;
    int uses_ = 0;
    std::mutex recording_;
};

/// The place of what is carried out on `stream`, as long as somebody holds it.
std::shared_ptr<Place> place_of(const c10::cuda::CUDAStream& stream) {
    static std::mutex mutex;
    static auto* const places =
        new std::map<std::pair<c10::DeviceIndex, cudaStream_t>, std::weak_ptr<Place>>;
    const std::lock_guard lock(mutex);
    std::weak_ptr<Place>& known = (*places)[{stream.device_index(), stream.stream()}];
    std::shared_ptr<Place> place = known.lock();
    if (!place) known = place = std::make_shared<Place>(stream.device_index());
    return place;
}

/// Streams of PyTorch's pools have odd numbers, the default stream 0, others their own address.
bool is_torch_stream(const c10::cuda::CUDAStream& stream) {
    return stream.id() == 0 || stream.id() % 2 != 0;
}

}  // namespace

std::shared_ptr<runtime::RecordedMemory> record_gpu_work(c10::Device device,
                                                         const std::function<void()>& work,
                                                         const std::function<void(void*)>& read) {
    const c10::cuda::CUDAStream now = c10::cuda::getCurrentCUDAStream(device.index());
    if (!is_torch_stream(now)) return nullptr;
    std::shared_ptr<Place> place = place_of(now);
    place->record(work, read);
    return place;
}

void run_on_gpu_stream(c10::Device device, void* stream, const std::function<void()>& work) {
    const c10::cuda::CUDAStreamGuard on(
        c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), device.index()));
    work();
}

}  // namespace ingot::trace
