// NVIDIA's driver, found at run time: no header, no library of CUDA is needed to build.
//
// A Gpu is one device of this process: its primary context (the one PyTorch works in), its
// properties, and the calls that programs make. Everything throws Error with the driver's own name
// of the failure. Below the GPU's kernel loader and the programs; knows nothing of either.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ingot::runtime::cuda {

using Handle = void*;  // of a context, module, function or stream: pointers of the driver

struct DriverApi;

/// Machine code in a context. Unloaded with its last owner; no kernel of it may be running then.
class Module {
  public:
    Module(const DriverApi& api, Handle context, Handle module)
        : api_(api), context_(context), module_(module) {}
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;
    ~Module();
    /// The kernel of that name. `dynamic_shared`: the most dynamic shared memory it will ask for.
    Handle function(const std::string& name, std::int64_t dynamic_shared) const;

  private:
    const DriverApi& api_;
    Handle context_, module_;
};

/// A word in the host's memory that kernels write and the host reads without waiting for them.
class HostWord {
  public:
    explicit HostWord(const DriverApi& api);
    HostWord(const HostWord&) = delete;
    HostWord& operator=(const HostWord&) = delete;
    ~HostWord();
    /// The address, the same for both sides.
    std::int64_t* get() const { return word_; }

  private:
    const DriverApi& api_;
    std::int64_t* word_ = nullptr;
};

class Gpu {
  public:
    /// Device `ordinal` of the process. Throws NotSupported, saying why, where there is none that
    /// can run our kernels.
    static std::shared_ptr<const Gpu> get(int ordinal);

    int ordinal() const { return ordinal_; }
    /// 90 for compute capability 9.0.
    int capability() const { return capability_; }
    int processors() const { return processors_; }
    std::int64_t shared_bytes() const { return shared_bytes_; }  // that one block may have
    const DriverApi& api() const { return api_; }

    /// Makes the device's context the calling thread's, if it is not. About 20 ns.
    void make_current() const;
    /// Loads a cubin, or PTX (which the driver then compiles).
    std::shared_ptr<const Module> load(std::span<const std::uint8_t> image) const;
    /// The driver's own compiler: PTX to a cubin. Slow, and one at a time.
    std::vector<std::uint8_t> assemble(const std::string& ptx) const;
    /// Copies from the host and waits.
    void upload(void* to, const void* from, std::size_t bytes) const;
    /// A grid of `blocks` by `instances`. `overlaps`: the code waits by itself for the kernel
    /// before it, so that the GPU may start it while that one ends.
    void launch(Handle function, unsigned blocks, unsigned instances, unsigned threads,
                unsigned shared, Handle stream, void** parameters, bool overlaps = false) const;
    /// Waits for everything the context has been asked to do.
    void synchronize() const;

  private:
    Gpu(const DriverApi& api, int ordinal);
    const DriverApi& api_;
    int ordinal_, capability_ = 0, processors_ = 0;
    std::int64_t shared_bytes_ = 0;
    Handle context_ = nullptr;
};

}  // namespace ingot::runtime::cuda
