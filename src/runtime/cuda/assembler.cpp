// See assembler.h.
#include "runtime/cuda/assembler.h"

#include <dlfcn.h>

#include "ir/error.h"

namespace ingot::runtime::cuda {
namespace {

constexpr int kInputPtx = 2;  // NVJITLINK_INPUT_PTX

struct NvJitLink {
    int (*create)(void**, std::uint32_t, const char**) = nullptr;
    int (*destroy)(void**) = nullptr;
    int (*add)(void*, int, const void*, std::size_t, const char*) = nullptr;
    int (*complete)(void*) = nullptr;
    int (*cubin_size)(void*, std::size_t*) = nullptr;
    int (*cubin)(void*, void*) = nullptr;
    int (*log_size)(void*, std::size_t*) = nullptr;
    int (*log)(void*, char*) = nullptr;

    /// The library's names carry its version: `__nvJitLinkCreate_13_0`.
    bool bind(void* library, const std::string& suffix) {
        const auto find = [&](const char* name, auto& into) {
            into = reinterpret_cast<std::remove_reference_t<decltype(into)>>(
                dlsym(library, ("__nvJitLink" + std::string(name) + suffix).c_str()));
            return into != nullptr;
        };
        return find("Create", create) && find("Destroy", destroy) && find("AddData", add) &&
               find("Complete", complete) && find("GetLinkedCubinSize", cubin_size) &&
               find("GetLinkedCubin", cubin) && find("GetErrorLogSize", log_size) &&
               find("GetErrorLog", log);
    }
};

const NvJitLink* find_library() {
    struct Version {
        const char* file;
        int major, newest_minor;
    };
    for (const Version& v : {Version{"libnvJitLink.so.13", 13, 9}, {"libnvJitLink.so.12", 12, 9}}) {
        void* library = dlopen(v.file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (library == nullptr) library = dlopen(v.file, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) continue;
        auto found = std::make_unique<NvJitLink>();
        for (int minor = v.newest_minor; minor >= 0; --minor)
            if (found->bind(library, "_" + std::to_string(v.major) + "_" + std::to_string(minor)))
                return found.release();
    }
    return nullptr;
}

const NvJitLink* library() {
    static const NvJitLink* const found = find_library();
    return found;
}

}  // namespace

bool has_parallel_assembler() { return library() != nullptr; }

std::vector<std::uint8_t> assemble(const Gpu& gpu, const std::string& ptx) {
    const NvJitLink* link = library();
    if (link == nullptr) return gpu.assemble(ptx);
    std::string arch = "-arch=sm_" + std::to_string(gpu.capability());
    if (gpu.capability() == 90) arch += 'a';  // as the PTX: see gpu_target
    const char* options[] = {arch.c_str()};
    void* handle = nullptr;
    if (link->create(&handle, 1, options) != 0) return gpu.assemble(ptx);
    struct Guard {
        const NvJitLink& link;
        void* handle;
        ~Guard() { link.destroy(&handle); }
    } guard{*link, handle};
    std::size_t size = 0;
    if (link->add(handle, kInputPtx, ptx.c_str(), ptx.size() + 1, "kernel") != 0 ||
        link->complete(handle) != 0 || link->cubin_size(handle, &size) != 0) {
        std::string log;
        std::size_t length = 0;
        if (link->log_size(handle, &length) == 0 && length > 0) {
            log.resize(length);
            link->log(handle, log.data());
        }
        throw InternalError("nvJitLink does not take a kernel's PTX: " + log);
    }
    std::vector<std::uint8_t> cubin(size);
    if (link->cubin(handle, cubin.data()) != 0) throw InternalError("nvJitLink gave no code");
    return cubin;
}

}  // namespace ingot::runtime::cuda
