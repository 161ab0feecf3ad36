// Calls of a compiled function through CUDA graphs; part of compiled_function.h.
//
// A graph's work has fixed addresses. Parameters are read where they lie, and a graph whose
// parameters have moved is recorded again; other inputs are copied into memory of the graph's own.
// Outputs are handed out where the graph writes them, and the graph is not replayed while any of
// them lives: the next call takes another graph (two of them, in a loop that keeps its last
// result), or runs without one. So nothing a caller holds is ever overwritten.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "trace/compiled_call.h"
#include "trace/gpu.h"

namespace ingot::trace {

namespace {

constexpr std::size_t kMostGraphs = 3;
constexpr int kMostRecordings = 12;  // of one function; beyond, parameters move too often

/// `made` again, keeping `token` as long as somebody has it.
at::Tensor handed_out(const at::Tensor& made, const std::shared_ptr<int>& token,
                      c10::Device device) {
    auto* held = new std::shared_ptr<int>(token);
    const auto release = [](void* p) { delete static_cast<std::shared_ptr<int>*>(p); };
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), made.storage().nbytes(),
        c10::DataPtr(made.storage().mutable_data(), held, release, device), nullptr, false);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(key_of(device)), made.dtype());
    t.unsafeGetTensorImpl()->set_storage_offset(made.storage_offset());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
    return t;
}

}  // namespace

/// One recorded graph with what it works on.
struct CompiledFunction::Captured {
    std::unique_ptr<GpuGraph> graph;
    std::shared_ptr<const Sized> sized;
    std::optional<runtime::Instance::Lease> context;
    std::vector<void*> addresses;             // by graph input: where it lies
    std::vector<at::Tensor> copies;           // by graph input, or undefined: read in place
    c10::SmallVector<at::Tensor, 4> outputs;  // by graph output
    const void* frozen = nullptr;             // the frozen values it reads
    std::shared_ptr<int> token = std::make_shared<int>(0);  // also held by outputs handed out
    bool idle() const { return token.use_count() == 1; }
};

CompiledFunction::GraphCalls::GraphCalls() = default;
CompiledFunction::GraphCalls::~GraphCalls() = default;

void CompiledFunction::prepare_graphs(bool uses_random) {
    if (!options_.cuda_graphs || !device_.is_cuda()) {
        graphs_.reason = device_.is_cuda() ? "not asked for" : "not on a GPU";
    } else if (uses_random) {
        graphs_.reason = "the program draws random numbers";
    } else if (!written_.empty()) {
        graphs_.reason = "the program writes its inputs";
    } else {
        graphs_.wanted = true;
        graphs_.reason = "not recorded yet: the first call runs without";
    }
}

void CompiledFunction::give_up_graphs(std::string reason) {
    graphs_.wanted = false;
    graphs_.reason = std::move(reason);
    std::erase_if(graphs_.list, [](const auto& g) { return g->idle(); });
}

void CompiledFunction::drop_graphs() {
    const std::lock_guard lock(graphs_.mutex);
    std::erase_if(graphs_.list, [](const auto& g) { return g->idle(); });
}

std::string CompiledFunction::graph_state() const {
    const std::lock_guard lock(graphs_.mutex);
    return graphs_.reason;
}

bool CompiledFunction::call_graph(std::span<c10::TensorImpl* const> inputs,
                                  const std::shared_ptr<const Variant>& variant,
                                  const std::shared_ptr<const Sized>& sized,
                                  std::vector<at::Tensor>& outputs) {
    const std::unique_lock lock(graphs_.mutex, std::try_to_lock);
    if (!lock || !graphs_.wanted) return false;
    if (graphs_.calls++ == 0) return false;
    std::erase_if(graphs_.list, [&](const auto& g) {
        return g->idle() && (g->sized != sized || !reads_in_place(*g, inputs));
    });
    const BelowAutograd guard;
    for (const auto& g : graphs_.list) {
        if (!g->idle() || g->sized != sized || !reads_in_place(*g, inputs)) continue;
        CallFrame frame{inputs, variant, sized, {}, &**g->context, {}, {}};
        if (sized->instance->has_frozen_steps()) freeze(frame);
        if (g->context->operator->()->frozen() != g->frozen) continue;
        copy_inputs(*g, inputs);
        sized->instance->check_gpu_error();
        g->graph->replay();
        for (const at::Tensor& made : g->outputs)
            frame.outputs.push_back(handed_out(made, g->token, device_));
        build_outputs(frame, outputs);
        return true;
    }
    if (graphs_.list.size() >= kMostGraphs) return false;
    if (graphs_.recordings >= kMostRecordings) {
        give_up_graphs("parameters moved too often");
        return false;
    }
    try {
        record_graph(inputs, variant, sized);
        graphs_.reason = "recorded";
    } catch (const std::exception& e) {
        const std::string what = e.what();
        give_up_graphs("cannot be recorded: " + what.substr(0, what.find('\n')));
    }
    return false;  // the call that records runs by itself
}

bool CompiledFunction::reads_in_place(const Captured& g,
                                      std::span<c10::TensorImpl* const> inputs) const {
    for (std::size_t i = 0; i < g.addresses.size(); ++i)
        if (!g.copies[i].defined() && g.addresses[i] != data_of(*graph_input(inputs, i), false))
            return false;
    return true;
}

void CompiledFunction::copy_inputs(const Captured& g,
                                   std::span<c10::TensorImpl* const> inputs) const {
    for (std::size_t i = 0; i < g.copies.size(); ++i)
        if (g.copies[i].defined()) g.copies[i].copy_(borrow(graph_input(inputs, i)), true);
}

void CompiledFunction::record_graph(std::span<c10::TensorImpl* const> inputs,
                                    const std::shared_ptr<const Variant>& variant,
                                    const std::shared_ptr<const Sized>& sized) {
    ++graphs_.recordings;
    auto g = std::make_unique<Captured>();
    g->graph = make_gpu_graph(device_);
    if (!g->graph) throw NotSupported("this PyTorch was built without CUDA");
    const runtime::Instance& instance = *sized->instance;
    g->sized = sized;
    g->context.emplace(instance.lease());
    CallFrame frame{inputs, variant, sized, {}, &**g->context, {}, {}};
    if (instance.has_frozen_steps()) freeze(frame);
    g->frozen = frame.context->frozen();
    for (std::size_t i = 0; i < from_caller_.size(); ++i) {
        c10::TensorImpl* impl = graph_input(inputs, i);
        at::Tensor copy;
        if (from_caller_[i] >= 0 && !parameter_[i]) {
            copy = at::empty_strided(impl->sizes(), impl->strides(), borrow(impl).options());
            copy.copy_(borrow(impl));
        }
        void* at = data_of(copy.defined() ? *copy.unsafeGetTensorImpl() : *impl, false);
        g->addresses.push_back(at);
        g->copies.push_back(std::move(copy));
        frame.context->set_input(i, at);
    }
    g->graph->record([&] {
        frame.outputs.clear();
        bind_outputs(frame);
        instance.run(*frame.context, threads_);
        collect(frame);
    });
    g->outputs = std::move(frame.outputs);
    graphs_.list.push_back(std::move(g));
}

}  // namespace ingot::trace
