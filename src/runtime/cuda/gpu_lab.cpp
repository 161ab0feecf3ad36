// See gpu_lab.h.
#include "runtime/cuda/gpu_lab.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>

#include "ir/error.h"
#include "runtime/cuda/driver_table.h"

namespace ingot::runtime::cuda {

namespace {

constexpr int kRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kRounds = 7;
constexpr std::size_t kPattern = std::size_t{1} << 20;  // bytes of numbers made on the host
constexpr std::size_t kMostMemory = std::size_t{2} << 30;
constexpr std::size_t kShareOfFree = 4;  // of free memory a quarter

/// A stream for each GPU, for good: libraries keep workspaces for every stream they see.
Handle lab_stream(const Gpu& gpu) {
    static std::mutex mutex;
    static auto* const streams = new std::map<int, Handle>;
    const std::lock_guard lock(mutex);
    Handle& stream = (*streams)[gpu.ordinal()];
    if (stream == nullptr)
        gpu.api().require(gpu.api().stream_create(&stream, kNonBlocking), "making a stream");
    return stream;
}

/// Numbers between -1 and 1, the same every time.
template <class Word, class Convert>
void numbers(std::vector<std::byte>& into, const Convert& convert) {
    std::minstd_rand random(1);
    std::uniform_real_distribution<double> number(-1, 1);
    for (std::size_t at = 0; at + sizeof(Word) <= into.size(); at += sizeof(Word)) {
        const Word word = convert(number(random));
        std::memcpy(into.data() + at, &word, sizeof word);
    }
}

/// Nothing for types whose numbers are zeros.
std::optional<std::vector<std::byte>> pattern(DType type, std::size_t bytes) {
    std::vector<std::byte> all(std::min(bytes, kPattern));
    const auto high_half = [](double v) {
        return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(v)) >>
                                          16);
    };
    // Signs, some exponents below that of 1, all fractions.
    const auto half = [](double v) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v));
        return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (bits >> 8 & 0x3bffu));
    };
    switch (real_type(type)) {
        case DType::F32:
            numbers<float>(all, [](double v) { return static_cast<float>(v); });
            return all;
        case DType::F64:
            numbers<double>(all, [](double v) { return v; });
            return all;
        case DType::BF16:
            numbers<std::uint16_t>(all, high_half);
            return all;
        case DType::F16:
            numbers<std::uint16_t>(all, half);
            return all;
        default:
            return std::nullopt;
    }
}

std::uint64_t address(const std::byte* p) { return reinterpret_cast<std::uint64_t>(p); }

}  // namespace

GpuLab::GpuLab(std::shared_ptr<const Gpu> gpu) : gpu_(std::move(gpu)) {
    const DriverApi& api = gpu_->api();
    if (!api.measures) throw NotSupported("the NVIDIA driver is too old to measure with");
    gpu_->make_current();
    stream_ = lab_stream(*gpu_);
    mode_before_ = kRelaxed;
    require(api.exchange_capture_mode(&mode_before_), "choosing a mode of recording");
    try {
        require(api.event_create(&begin_, 0), "making an event");
        require(api.event_create(&end_, 0), "making an event");
    } catch (...) {
        if (begin_ != nullptr) api.event_destroy(begin_);
        api.exchange_capture_mode(&mode_before_);
        throw;
    }
}

GpuLab::~GpuLab() {
    const DriverApi& api = gpu_->api();
    api.stream_synchronize(stream_);
    if (memory_ != 0) api.memory_free(memory_);
    api.event_destroy(begin_);
    api.event_destroy(end_);
    api.exchange_capture_mode(&mode_before_);
}

void GpuLab::require(int result, const char* what) const { gpu_->api().require(result, what); }

void GpuLab::wait() const {
    require(gpu_->api().stream_synchronize(stream_), "waiting for measured work");
}

std::size_t GpuLab::room() const {
    std::size_t free = 0, all = 0;
    require(gpu_->api().memory_info(&free, &all), "asking for free memory");
    return std::max(std::min(free / kShareOfFree, kMostMemory), memory_bytes_);
}

std::byte* GpuLab::memory(std::size_t bytes) {
    if (bytes > memory_bytes_) {
        if (bytes > room()) return nullptr;
        wait();
        if (memory_ != 0) gpu_->api().memory_free(std::exchange(memory_, 0));
        memory_bytes_ = 0;
        if (gpu_->api().memory_alloc(&memory_, bytes) != 0) {
            memory_ = 0;
            return nullptr;
        }
        memory_bytes_ = bytes;
    }
    return reinterpret_cast<std::byte*>(memory_);
}

void GpuLab::fill(std::byte* at, DType type, std::size_t bytes) {
    if (bytes == 0) return;
    const auto first = pattern(type, bytes);
    if (!first) return require(gpu_->api().fill(address(at), 0, bytes, stream_), "clearing memory");
    require(gpu_->api().copy_in(address(at), first->data(), first->size(), stream_),
            "copying to the GPU");
    wait();  // a driver may still be reading memory that is not pinned
    for (std::size_t done = first->size(); done < bytes; done *= 2)
        copy(at + done, at, std::min(done, bytes - done));
}

void GpuLab::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    require(gpu_->api().copy(address(to), address(from), bytes, stream_), "copying on the GPU");
}

std::vector<double> GpuLab::time(std::span<const Work> rivals, int turns) {
    const DriverApi& api = gpu_->api();
    struct Graph {
        const DriverApi& api;
        Handle exec = nullptr;
        explicit Graph(const DriverApi& a) : api(a) {}
        Graph(Graph&& other) noexcept : api(other.api), exec(std::exchange(other.exec, nullptr)) {}
        Graph& operator=(Graph&&) = delete;
        ~Graph() {
            if (exec != nullptr) api.graph_exec_destroy(exec);
        }
    };
    std::vector<Graph> graphs;
    for (const Work& work : rivals) {
        Handle recorded = nullptr;
        require(api.capture_begin(stream_, kRelaxed), "recording work to measure");
        try {
            for (int t = 0; t < turns; ++t) work(t);
        } catch (...) {
            api.capture_end(stream_, &recorded);
            if (recorded != nullptr) api.graph_destroy(recorded);
            throw;
        }
        require(api.capture_end(stream_, &recorded), "recording work to measure");
        Graph& graph = graphs.emplace_back(api);
        const int result = api.graph_instantiate(&graph.exec, recorded, 0);
        api.graph_destroy(recorded);
        require(result, "recording work to measure");
    }
    std::vector<double> least(rivals.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; ++round)
        for (std::size_t r = 0; r < graphs.size(); ++r) {
            require(api.event_record(begin_, stream_), "measuring");
            require(api.graph_launch(graphs[r].exec, stream_), "measuring");
            require(api.event_record(end_, stream_), "measuring");
            wait();
            float milliseconds = 0;
            require(api.event_elapsed(&milliseconds, begin_, end_), "measuring");
            least[r] = std::min(least[r], 1e3 * static_cast<double>(milliseconds) / turns);
        }
    return least;
}

}  // namespace ingot::runtime::cuda
