// max-autotune on a GPU, as calls see it; part of compiled_function.h.
//
// From its second call on, a function has the forms of its kernels measured beside the calls
// (runtime/gpu_tuner.h). The first call after that goes over to the program with the best ones: it
// makes its frozen values anew, and its CUDA graph is recorded again. Where nothing has changed,
// the program stays. What has been found is on disk, so that the next process's first call has it.
//
// Not for symbolic sizes, and not under torch.use_deterministic_algorithms: other forms add up sums
// in another order, and nobody could tell from which call on.
#include <ATen/Context.h>

#include "runtime/cuda/recorded_work.h"
#include "trace/compiled_call.h"
#include "trace/compiled_function.h"

namespace ingot::trace {

bool CompiledFunction::should_tune() {
    if (!options_.max_autotune || !device_.is_cuda()) return false;
    if (options_.text_compiler != nullptr) {
        tuning_state_ = "not for kernels compiled from text";
    } else if (!symbols_.empty()) {
        tuning_state_ = "not for symbolic sizes";
    } else {
        tuning_state_ = "begins with the second call";
        return true;
    }
    return false;
}

std::string CompiledFunction::tuning_state() const {
    const std::lock_guard lock(mutex_);
    return tuning_state_;
}

bool CompiledFunction::tune() {
    using State = runtime::PendingProgram::State;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !tunes_.load(std::memory_order_relaxed)) return false;
    if (tuning_ && tuning_->state() == State::Pending) return false;
    if (calls_untuned_++ == 0 || at::globalContext().deterministicAlgorithms()) return false;
    const std::shared_ptr<const Variant> before = variant_.load();
    // The other program cannot be prepared while the caller records what the GPU does.
    const runtime::cuda::Gpu& gpu = *before->program->gpu();
    if (!runtime::cuda::reads_recorded_work(gpu) ||
        runtime::cuda::is_recording(gpu, externs_->device()->stream()))
        return false;
    const auto over = [&](std::string state) {
        tuning_.reset();
        tunes_.store(false);
        tuning_state_ = std::move(state);
        return false;
    };
    if (tuning_ && tuning_->state() == State::Stopped) tuning_.reset();  // by a fork: once more
    std::shared_ptr<const runtime::Program> program;
    try {
        if (!tuning_) {
            tuning_report_ = std::make_shared<runtime::TuningReport>();
            if (options_.background) {
                // Of calls it carries out products alone, which need no table.
                auto externs = std::make_shared<TorchExterns>(std::vector<ExternCallee>(), device_);
                tuning_ = compiler_->tune_later(graph_, options_for(true), std::move(externs),
                                                tuning_report_);
                tuning_state_ = "measuring";
                return false;
            }
            program = compiler_->tune(graph_, options_for(true), *externs_, *tuning_report_);
        } else if (tuning_->state() == State::Failed) {
            return over("could not measure");
        } else {
            program = tuning_->program();
        }
        over(runtime::summary(*tuning_report_));
        if (program == nullptr) return false;
        auto variant = variant_of(std::move(program));
        if (variant_.load() != before) return false;
        gpu.synchronize();  // the code of the old one may be unloaded from here on
        variant_.store(std::move(variant));
        return true;
    } catch (const std::exception& e) {
        // The form at hand goes on giving right results, only slower.
        const std::string what = e.what();
        return over("could not measure: " + what.substr(0, what.find('\n')));
    }
}

}  // namespace ingot::trace
