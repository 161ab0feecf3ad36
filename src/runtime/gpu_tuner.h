// max-autotune on GPUs: measures the forms that the kernels of one program may have, with the sizes
// they have there, and keeps the best (form_store.h).
//
// Two kinds of choices. Products that something costly follows: the library's with a kernel for the
// rest, or one generated kernel, of some tiles. Each way gives another plan, and what is measured
// is the steps in which the plans differ, one behind the other. Then the nests that touch the most
// memory: how they are laid over threads (form_search.h). Everything runs on memory of the bench's
// own (cuda/gpu_lab.h), for which there must be room; what cannot be measured is left as it was.
//
// For one thread beside the program's callers. Costs some 30 ms of compiling for each form, within
// the time it is given. Used by driver.cpp.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/gpu_forms.h"
#include "runtime/cache.h"
#include "runtime/cuda/gpu_lab.h"
#include "runtime/cuda/gpu_loader.h"
#include "runtime/form_search.h"
#include "runtime/form_store.h"
#include "runtime/host.h"
#include "runtime/tuning_report.h"
#include "schedule/plan.h"

namespace ingot::runtime {

class GpuTuner {
  public:
    using Clock = std::chrono::steady_clock;
    /// The plan of the program with such forms; `asked` gets each product whose form it asks for,
    /// a kernel without epilogue.
    using Planner =
        std::function<Plan(const codegen::GpuFormLookup& forms,
                           const std::function<void(const codegen::ProductForm&)>& asked)>;
    struct Parts {
        std::shared_ptr<const cuda::Gpu> gpu;
        FormStore& store;
        const ExternHost& externs;
        Planner plan;
        std::mutex& expressions;  // held while expressions are made
        double seconds;           // that measuring may take
        InterruptCheck interrupted;
    };
    explicit GpuTuner(Parts parts);

    /// True if some kernel shall have another form than it has had.
    bool run(TuningReport& report);

  private:
    class Trials;
    /// Steps that stand for a way to do something, each once, in order.
    struct Excerpt {
        Plan plan;
        std::size_t bytes = 0;  // of its arena
    };
    /// A step's kind: equal text, equal time.
    std::vector<std::string> kinds_of(const Plan& plan) const;
    Excerpt excerpt(const Plan& plan, const std::vector<std::size_t>& steps) const;

    std::optional<codegen::GpuForm> known(const std::string& key) const;
    bool over() const;
    void measure_products(TuningReport& report);
    void measure_product(const codegen::ProductForm& product, TuningReport& report);
    void measure_nests(TuningReport& report);
    void settle(const std::string& key, const std::string& what,
                const std::optional<FormAnswer>& answer, const codegen::GpuForm& model,
                TuningReport& report);

    Parts parts_;
    Clock::time_point end_;
    DiskCache no_cache_{CacheOptions{}};
    cuda::GpuLoader loader_;
    std::unique_ptr<cuda::GpuLab> lab_;  // once there is something to measure
    bool changed_ = false;
};

}  // namespace ingot::runtime
