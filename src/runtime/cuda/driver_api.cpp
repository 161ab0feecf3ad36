// The driver through dlopen; see driver_api.h.
#include "runtime/cuda/driver_api.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "ir/error.h"
#include "runtime/cuda/driver_table.h"

namespace ingot::runtime::cuda {

namespace {
// Constants of cuda.h that we use.
constexpr int kMultiprocessorCount = 16, kCapabilityMajor = 75, kCapabilityMinor = 76,
              kSharedOptIn = 97;                // CU_DEVICE_ATTRIBUTE_*
constexpr int kMaxDynamicShared = 8;            // CU_FUNC_ATTRIBUTE_*
constexpr unsigned kPortable = 1, kMapped = 2;  // CU_MEMHOSTALLOC_*
constexpr int kInputPtx = 1;                    // CU_JIT_INPUT_PTX
constexpr int kOldest = 70;                     // the first capability our PTX is made for
constexpr std::int64_t kPlainShared = 48 << 10;

struct Loaded {
    DriverApi api{};
    std::string why;  // it is not usable; empty if it is
};

template <class F>
bool bind(void* library, const char* name, F& into) {
    into = reinterpret_cast<F>(dlsym(library, name));
    return into != nullptr;
}

Loaded load_driver() {
    Loaded out;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        out.why = "no NVIDIA driver (libcuda.so.1)";
        return out;
    }
    DriverApi& a = out.api;
    const bool all =
        bind(library, "cuInit", a.init) && bind(library, "cuDeviceGet", a.device_get) &&
        bind(library, "cuDeviceGetCount", a.device_get_count) &&
        bind(library, "cuDeviceGetAttribute", a.device_get_attribute) &&
        bind(library, "cuDevicePrimaryCtxRetain", a.primary_retain) &&
        bind(library, "cuCtxGetCurrent", a.context_get_current) &&
        bind(library, "cuCtxSetCurrent", a.context_set_current) &&
        bind(library, "cuCtxSynchronize", a.context_synchronize) &&
        bind(library, "cuModuleLoadData", a.module_load) &&
        bind(library, "cuModuleUnload", a.module_unload) &&
        bind(library, "cuModuleGetFunction", a.module_get_function) &&
        bind(library, "cuFuncSetAttribute", a.function_set_attribute) &&
        bind(library, "cuLaunchKernel", a.launch_kernel) &&
        bind(library, "cuMemHostAlloc", a.host_alloc) &&
        bind(library, "cuMemFreeHost", a.host_free) && bind(library, "cuMemcpyHtoD_v2", a.upload) &&
        bind(library, "cuLinkCreate_v2", a.link_create) &&
        bind(library, "cuLinkAddData_v2", a.link_add) &&
        bind(library, "cuLinkComplete", a.link_complete) &&
        bind(library, "cuLinkDestroy", a.link_destroy) &&
        bind(library, "cuGetErrorName", a.error_name) &&
        bind(library, "cuGetErrorString", a.error_string);
    if (!all) {
        out.why = "the NVIDIA driver lacks functions that we need: it is too old";
        return out;
    }
    bind(library, "cuLaunchKernelEx", a.launch_kernel_ex);
    a.reads_graphs = a.launch_kernel_ex != nullptr && bind(library, "cuMemsetD8Async", a.fill_8) &&
                     bind(library, "cuMemsetD16Async", a.fill_16) &&
                     bind(library, "cuMemsetD32Async", a.fill_32) &&
                     bind(library, "cuStreamIsCapturing", a.stream_is_capturing) &&
                     bind(library, "cuStreamGetCaptureInfo_v3", a.stream_capture_info) &&
                     bind(library, "cuGraphGetNodes", a.graph_nodes) &&
                     bind(library, "cuGraphNodeGetType", a.node_type) &&
                     bind(library, "cuGraphNodeGetDependencies_v2", a.node_dependencies) &&
                     bind(library, "cuGraphKernelNodeGetParams_v2", a.kernel_node) &&
                     bind(library, "cuGraphKernelNodeGetAttribute", a.kernel_node_attribute) &&
                     bind(library, "cuGraphMemsetNodeGetParams", a.fill_node) &&
                     bind(library, "cuFuncGetParamInfo", a.function_parameter) &&
                     bind(library, "cuKernelGetFunction", a.kernel_function);
    a.measures = bind(library, "cuThreadExchangeStreamCaptureMode", a.exchange_capture_mode) &&
                 bind(library, "cuStreamCreate", a.stream_create) &&
                 bind(library, "cuStreamDestroy_v2", a.stream_destroy) &&
                 bind(library, "cuStreamSynchronize", a.stream_synchronize) &&
                 bind(library, "cuEventCreate", a.event_create) &&
                 bind(library, "cuEventDestroy_v2", a.event_destroy) &&
                 bind(library, "cuEventRecord", a.event_record) &&
                 bind(library, "cuEventElapsedTime", a.event_elapsed) &&
                 bind(library, "cuMemGetInfo_v2", a.memory_info) &&
                 bind(library, "cuMemAlloc_v2", a.memory_alloc) &&
                 bind(library, "cuMemFree_v2", a.memory_free) &&
                 bind(library, "cuMemcpyDtoDAsync_v2", a.copy) &&
                 bind(library, "cuMemcpyHtoDAsync_v2", a.copy_in) &&
                 bind(library, "cuMemsetD8Async", a.fill) &&
                 bind(library, "cuStreamBeginCapture_v2", a.capture_begin) &&
                 bind(library, "cuStreamEndCapture", a.capture_end) &&
                 bind(library, "cuGraphInstantiateWithFlags", a.graph_instantiate) &&
                 bind(library, "cuGraphLaunch", a.graph_launch) &&
                 bind(library, "cuGraphDestroy", a.graph_destroy) &&
                 bind(library, "cuGraphExecDestroy", a.graph_exec_destroy);
    if (const int result = a.init(0); result != 0) {
        const char* name = nullptr;
        a.error_name(result, &name);
        out.why = std::string("the NVIDIA driver does not start: ") + (name ? name : "?");
    }
    return out;
}

/// The library stays for the life of the process, as PyTorch's own use of it does.
const DriverApi& driver() {
    static const Loaded* const loaded = new Loaded(load_driver());
    if (!loaded->why.empty()) throw NotSupported(loaded->why);
    return loaded->api;
}

}  // namespace

namespace {

/// While it lives, the calling thread may do what is refused to others while some thread records a
/// graph and counts on nobody interfering: loading code does not.
class RelaxedRecording {
  public:
    explicit RelaxedRecording(const DriverApi& api) : api_(api) {
        if (api_.measures) api_.exchange_capture_mode(&mode_);
    }
    ~RelaxedRecording() {
        if (api_.measures) api_.exchange_capture_mode(&mode_);
    }
    RelaxedRecording(const RelaxedRecording&) = delete;
    RelaxedRecording& operator=(const RelaxedRecording&) = delete;

  private:
    const DriverApi& api_;
    int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace

Module::~Module() {
    // The process may be ending, with the context gone already: nothing to do then.
    Handle before = nullptr;
    if (api_.context_get_current(&before) != 0) return;
    if (before != context_ && api_.context_set_current(context_) != 0) return;
    api_.module_unload(module_);
    if (before != context_) api_.context_set_current(before);
}

Handle Module::function(const std::string& name, std::int64_t dynamic_shared) const {
    Handle f = nullptr;
    api_.require(api_.module_get_function(&f, module_, name.c_str()), "finding a kernel");
    if (dynamic_shared > kPlainShared)
        api_.require(
            api_.function_set_attribute(f, kMaxDynamicShared, static_cast<int>(dynamic_shared)),
            "asking for shared memory");
    return f;
}

HostWord::HostWord(const DriverApi& api) : api_(api) {
    void* p = nullptr;
    api_.require(api_.host_alloc(&p, sizeof(std::int64_t), kPortable | kMapped),
                 "allocating the error word");
    word_ = static_cast<std::int64_t*>(p);
    *word_ = 0;
}
HostWord::~HostWord() { api_.host_free(word_); }

std::shared_ptr<const Gpu> Gpu::get(int ordinal) {
    const DriverApi& api = driver();
    static std::mutex mutex;
    static auto* const gpus = new std::map<int, std::shared_ptr<const Gpu>>;
    std::lock_guard lock(mutex);
    auto& gpu = (*gpus)[ordinal];
    if (!gpu) gpu = std::shared_ptr<const Gpu>(new Gpu(api, ordinal));
    return gpu;
}

Gpu::Gpu(const DriverApi& api, int ordinal) : api_(api), ordinal_(ordinal) {
    int count = 0, device = 0;
    api_.require(api_.device_get_count(&count), "counting the GPUs");
    if (ordinal < 0 || ordinal >= count)
        throw NotSupported("there is no GPU " + std::to_string(ordinal));
    api_.require(api_.device_get(&device, ordinal), "opening a GPU");
    const auto attribute = [&](int which) {
        int value = 0;
        api_.require(api_.device_get_attribute(&value, which, device), "asking a GPU");
        return value;
    };
    capability_ = 10 * attribute(kCapabilityMajor) + attribute(kCapabilityMinor);
    if (capability_ < kOldest)
        throw NotSupported("a GPU of compute capability " + std::to_string(capability_ / 10) + "." +
                           std::to_string(capability_ % 10) + "; 7.0 is the oldest supported");
    processors_ = attribute(kMultiprocessorCount);
    shared_bytes_ = attribute(kSharedOptIn);
    api_.require(api_.primary_retain(&context_, device), "opening a GPU's context");
}

void Gpu::make_current() const {
    Handle now = nullptr;
    if (api_.context_get_current(&now) == 0 && now == context_) return;
    api_.require(api_.context_set_current(context_), "choosing a GPU's context");
}

std::shared_ptr<const Module> Gpu::load(std::span<const std::uint8_t> image) const {
    make_current();
    const RelaxedRecording relaxed(api_);
    Handle module = nullptr;
    api_.require(api_.module_load(&module, image.data()), "loading a kernel");
    return std::make_shared<const Module>(api_, context_, module);
}

std::vector<std::uint8_t> Gpu::assemble(const std::string& ptx) const {
    make_current();
    Handle link = nullptr;
    api_.require(api_.link_create(0, nullptr, nullptr, &link), "starting the driver's compiler");
    struct Guard {
        const DriverApi& api;
        Handle link;
        ~Guard() { api.link_destroy(link); }
    } guard{api_, link};
    void* cubin = nullptr;
    std::size_t bytes = 0;
    api_.require(api_.link_add(link, kInputPtx, const_cast<char*>(ptx.c_str()), ptx.size() + 1,
                               "kernel", 0, nullptr, nullptr),
                 "compiling PTX");
    api_.require(api_.link_complete(link, &cubin, &bytes), "compiling PTX");
    const auto* begin = static_cast<const std::uint8_t*>(cubin);
    return {begin, begin + bytes};
}

void Gpu::upload(void* to, const void* from, std::size_t bytes) const {
    make_current();
    api_.require(api_.upload(reinterpret_cast<std::uint64_t>(to), from, bytes),
                 "copying to the GPU");
}

void Gpu::launch(Handle function, unsigned blocks, unsigned instances, unsigned threads,
                 unsigned shared, Handle stream, void** parameters, bool overlaps) const {
    int result = 0;
    if (overlaps && api_.launch_kernel_ex != nullptr) {
        LaunchAttribute early{kProgrammaticSerialization, 1, {}};
        const LaunchConfig config{
            {blocks, instances, 1}, {threads, 1, 1}, shared, stream, &early, 1};
        result = api_.launch_kernel_ex(&config, function, parameters, nullptr);
    } else {
        result = api_.launch_kernel(function, blocks, instances, 1, threads, 1, 1, shared, stream,
                                    parameters, nullptr);
    }
    if (result != 0) [[unlikely]]
        api_.require(result, "starting a kernel");
}

void Gpu::synchronize() const {
    make_current();
    api_.require(api_.context_synchronize(), "waiting for the GPU");
}

}  // namespace ingot::runtime::cuda
