// The C++ entrance: ingot::compile and the programs behind it. See include/ingot/ingot.h.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>

#include <deque>
#include <map>

#include "ingot/ingot.h"
#include "trace/compiled_function.h"

namespace ingot {

namespace {

/// Compilers are shared by all functions of one cache folder: they hold the kernels in use.
std::shared_ptr<const runtime::Compiler> compiler_for(const Options& options) {
    static std::mutex mutex;
    static auto* const all =
        new std::map<runtime::CompilerOptions, std::weak_ptr<const runtime::Compiler>>;
    const runtime::CompilerOptions wanted{options.cache, options.cache_directory};
    std::lock_guard lock(mutex);
    auto& slot = (*all)[wanted];
    auto compiler = slot.lock();
    if (!compiler) {
        compiler = std::make_shared<const runtime::Compiler>(wanted);
        slot = compiler;
    }
    return compiler;
}

}  // namespace

struct Compiled::State {
    State(TensorFunction f, Options o)
        : function(std::move(f)), options(std::move(o)), compiler(compiler_for(options)) {}

    Tensors call(const Tensors& inputs);
    std::shared_ptr<trace::CompiledFunction> record(const Tensors& inputs) const;
    bool try_programs(std::span<c10::TensorImpl* const> inputs, const Tensors& tensors,
                      Tensors& outputs);
    bool add_program(const Tensors& inputs);

    const TensorFunction function;
    const Options options;
    const std::shared_ptr<const runtime::Compiler> compiler;
    mutable std::mutex mutex;
    std::vector<std::shared_ptr<trace::CompiledFunction>> programs;
    std::string reason;
    bool hopeless = false;
};

std::shared_ptr<trace::CompiledFunction> Compiled::State::record(const Tensors& inputs) const {
    at::NoGradGuard no_grad;
    trace::Recorder recorder;
    Tensors promises, outputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        promises.push_back(recorder.add_input(inputs[i], false, std::to_string(i)));
    {
        trace::Recorder::Scope scope(recorder);
        try {
            outputs = function(promises);
        } catch (const std::exception&) {
            if (recorder.failure()) throw NotSupported(*recorder.failure());
            throw;
        }
    }
    trace::Recording recording = recorder.finish(outputs);
    recording.graph.round_intermediates = options.round_intermediates;
    runtime::CompileOptions compile;
    compile.freezing = options.freezing;
    compile.debug = options.debug;
    return std::make_shared<trace::CompiledFunction>(std::move(recording), inputs, promises,
                                                     std::move(outputs), compiler, compile);
}

bool Compiled::State::try_programs(std::span<c10::TensorImpl* const> inputs, const Tensors& tensors,
                                   Tensors& outputs) {
    std::vector<std::shared_ptr<trace::CompiledFunction>> list;
    {
        std::lock_guard lock(mutex);
        list = programs;
    }
    for (const auto& program : list) {
        switch (program->call(inputs, outputs)) {
            case trace::CallStatus::Done:
                return true;
            case trace::CallStatus::KernelFailure:
                outputs = function(tensors);
                return true;
            case trace::CallStatus::OtherInputs:
                break;
        }
    }
    return false;
}

bool Compiled::State::add_program(const Tensors& inputs) {
    std::lock_guard lock(mutex);
    if (hopeless || static_cast<int>(programs.size()) >= options.size_limit) return false;
    try {
        programs.push_back(record(inputs));
        return true;
    } catch (const Error& e) {
        reason = e.what();
        hopeless = true;
        return false;
    }
}

Tensors Compiled::State::call(const Tensors& inputs) {
    c10::SmallVector<c10::TensorImpl*, 16> raw;
    const bool grad = at::GradMode::is_enabled();
    for (const at::Tensor& t : inputs) {
        if (!t.defined() || (grad && t.requires_grad())) return function(inputs);
        raw.push_back(t.unsafeGetTensorImpl());
    }
    Tensors outputs;
    if (try_programs(raw, inputs, outputs)) return outputs;
    if (add_program(inputs) && try_programs(raw, inputs, outputs)) return outputs;
    return function(inputs);
}

Tensors Compiled::operator()(const Tensors& inputs) const { return state_->call(inputs); }

int Compiled::program_count() const {
    std::lock_guard lock(state_->mutex);
    return static_cast<int>(state_->programs.size());
}

std::string Compiled::fallback_reason() const {
    std::lock_guard lock(state_->mutex);
    return state_->reason;
}

Compiled compile(TensorFunction function, const Tensors& examples, Options options) {
    auto state = std::make_shared<Compiled::State>(std::move(function), std::move(options));
    state->add_program(examples);
    return Compiled(std::move(state));
}

}  // namespace ingot
