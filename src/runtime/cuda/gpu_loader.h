// A plan's kernels as machine code on a GPU: from this process, from the disk cache (cubins, all of
// a plan in one entry), or compiled now on several threads. The GPU's counterpart of
// kernel_loader.h; used by driver.cpp alone.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/gpu_forms.h"
#include "codegen/llvm/jit.h"
#include "runtime/cache.h"
#include "runtime/cuda/driver_api.h"
#include "runtime/driver.h"
#include "runtime/kernel_jobs.h"

namespace ingot::runtime::cuda {

/// A kernel in the context of one GPU. `launches` is text over ks0, ks1, ... as in kernel_loader.h.
struct LoadedGpuKernel {
    std::vector<std::shared_ptr<const Module>> modules;
    std::string launches;
    std::string refusal;  // why the compiler of text that was asked for has not made it
};

/// One kernel as PTX.
struct PtxKernel {
    std::string ptx;
    std::vector<GpuLaunch> launches;
};
/// `emitting`, if given, is held while expressions are made. `form`: instead of the model's.
PtxKernel emit_ptx(const codegen::Jit& jit, const Kernel& kernel, std::mutex* emitting = nullptr,
                   const std::optional<codegen::GpuForm>& form = {});

/// What the meaning of a GPU's kernels, and of the forms found for them, hangs on.
extern const std::string_view kGpuKernelsVersion;

class GpuLoader {
  public:
    /// `cache` must outlive the loader.
    GpuLoader(std::shared_ptr<const Gpu> gpu, DiskCache& cache);

    const codegen::Jit& jit() const { return jit_; }
    const std::shared_ptr<const Gpu>& gpu() const { return gpu_; }
    /// The code of every kernel of the plan, in order; what keeps it alive is added to `code`. With
    /// `text` it comes from there where possible. `forms`: of kernels that shall have another one
    /// than the model's.
    std::vector<KernelLaunches> load(const Plan& plan, const TextCompiler* text, int threads,
                                     const WhileWaiting& waiting, CompileReport& report,
                                     std::vector<std::shared_ptr<const void>>& code,
                                     const codegen::GpuFormLookup& forms = {});

  private:
    struct Job;
    static void set_forms(std::vector<Job>& jobs, const codegen::GpuFormLookup& forms,
                          std::string& pack_key);
    void take_from_disk(std::vector<Job>& jobs, const std::string& pack_key, CompileReport& report);
    void compile_one(Job& job) const;
    void compile_text(std::vector<Job>& jobs, const TextCompiler& text, int threads) const;
    void store(const std::vector<Job>& jobs, const std::string& pack_key);

    std::shared_ptr<const Gpu> gpu_;
    codegen::Jit jit_;
    DiskCache& cache_;
    std::mutex mutex_;
    mutable std::mutex emitting_;  // the kernels of a plan make expressions in one pool
    std::map<std::string, std::weak_ptr<const LoadedGpuKernel>> loaded_;
};

/// The target LLVM compiles for: the GPU's own, or the newest it knows, whose PTX newer GPUs take.
codegen::TargetInfo gpu_target(int capability);

}  // namespace ingot::runtime::cuda
