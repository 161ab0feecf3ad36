// What the loaders of kernels share, whatever the target: the keys of a plan's kernels, launch
// expressions as text that outlives a compilation, and compiling on several threads until somebody
// interrupts. Used by kernel_loader.cpp and cuda/gpu_loader.cpp.
#pragma once
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/driver.h"

namespace ingot::runtime {

/// A kernel whose code is wanted.
struct KernelJob {
    const Kernel* kernel = nullptr;
    ExprPool* pool = nullptr;
    std::string text, key;
    std::exception_ptr error;  // what ended its compilation
};

/// Those of a loader's own kind, as what they share.
template <typename Job>
std::vector<KernelJob*> pointers(std::vector<Job>& jobs) {
    std::vector<KernelJob*> all;
    for (Job& job : jobs) all.push_back(&job);
    return all;
}

/// Fills in the kernel, its text and key of each job, and returns the key of all together.
/// `version`: the meaning of an entry; `target`: whom the code is for.
std::string set_keys(std::span<KernelJob* const> jobs, const Plan& plan, std::string_view version,
                     std::string_view target);

/// Launches as lines of fields. Expressions are over ks0, ks1, ... (the kernel's sizes in order)
/// instead of the kernel's own symbols, which belong to the pool of one compilation.
class LaunchText {
  public:
    LaunchText(const Kernel& kernel, ExprPool& pool) : kernel_(kernel), pool_(pool) {}

    std::string text(Expr e) const;
    Expr expression(const std::string& text) const;
    /// The fields of each line; throws InternalError when they are not `count`.
    static std::vector<std::vector<std::string>> parse(const std::string& lines, std::size_t count);
    static std::string line(std::span<const std::string> fields);

  private:
    const Kernel& kernel_;
    ExprPool& pool_;
};

/// Gives jobs the code that this process has: `loaded` is by key. The caller holds what guards it.
template <typename Job, typename Loaded>
int take_loaded(std::vector<Job>& jobs,
                const std::map<std::string, std::weak_ptr<const Loaded>>& loaded) {
    int taken = 0;
    for (Job& job : jobs)
        if (const auto found = loaded.find(job.key); found != loaded.end())
            if ((job.loaded = found->second.lock())) ++taken;
    return taken;
}

/// The jobs that have no code yet.
template <typename Job>
std::vector<KernelJob*> missing_code(std::vector<Job>& jobs) {
    std::vector<KernelJob*> missing;
    for (Job& job : jobs)
        if (!job.loaded) missing.push_back(&job);
    return missing;
}

/// What the thread that waits for others does.
struct WhileWaiting {
    InterruptCheck interrupted;     // asked again and again
    std::function<void()> at_once;  // or null; done first
};

/// Calls `compile` for each job on up to `threads` threads, the longest text first so that none of
/// those is left for the end. It must not throw but set the job's error, which ends the rest and is
/// thrown here. Throws Interrupted when `waiting.interrupted`, asked on this thread, says so.
void compile_on_threads(std::vector<KernelJob*> jobs, int threads, const WhileWaiting& waiting,
                        const std::function<void(KernelJob&)>& compile);

}  // namespace ingot::runtime
