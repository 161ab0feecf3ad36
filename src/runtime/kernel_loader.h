// Kernels to callable code: from this process, from the disk cache, or compiled now on several
// threads. One entry of the disk cache holds all kernels of a plan. Used by driver.cpp alone.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "codegen/llvm/jit.h"
#include "runtime/cache.h"
#include "runtime/code_library.h"
#include "runtime/driver.h"

namespace ingot::runtime {

/// A loaded kernel. Launches are kept as text over ks0, ks1, ... (the kernel's sizes in order),
/// because expressions belong to the pool of one compilation.
struct LoadedKernel {
    std::vector<std::shared_ptr<const SharedFunction>> shared;  // that the code calls
    std::shared_ptr<codegen::LoadedCode> code;
    std::string launches;
};

class KernelLoader {
  public:
    /// Both must outlive the loader.
    KernelLoader(const codegen::Jit& jit, DiskCache& cache)
        : jit_(jit), cache_(cache), library_(jit) {}

    /// The code of every kernel of the plan, in order; what keeps it alive is added to `code`.
    std::vector<KernelLaunches> load(const Plan& plan, int threads,
                                     const InterruptCheck& interrupted, CompileReport& report,
                                     std::vector<std::shared_ptr<const void>>& code);

    /// LLVM IR of one kernel before optimisation.
    codegen::IrModule emit(const Kernel& kernel, KernelCode& launches) const;

  private:
    struct Job;
    void take_from_disk(std::vector<Job>& jobs, const std::string& pack_key, CompileReport& report);
    void compile_one(Job& job);
    void store(const std::vector<Job>& jobs, const std::string& pack_key);

    const codegen::Jit& jit_;
    DiskCache& cache_;
    CodeLibrary library_;
    std::mutex mutex_;
    mutable std::mutex emitting_;  // the kernels of a plan make expressions in one pool
    std::map<std::string, std::weak_ptr<const LoadedKernel>> loaded_;
};

}  // namespace ingot::runtime
