// Calls of a compiled function through CUDA graphs; part of compiled_function.h.
//
// A graph's work has fixed addresses. Parameters, and inputs that the program writes, are read
// where they lie, and a graph whose parameters have moved is recorded again; other inputs are
// copied into memory of the graph's own. Outputs are handed out where the graph writes them, and
// the graph is not replayed while any of them lives: the next call takes another graph (two of
// them, in a loop that keeps its last result), or runs without one. So nothing a caller holds is
// ever overwritten.
//
// A forward and its backward (differentiable.h) each have graphs of their own. What a forward's
// graph has saved is among its outputs, so it is not replayed before the backward is done with it;
// the backward's graphs read it where it lies, one of them for each graph of the forward. What
// lives only while a graph works lies in an arena that all of them share (graph_memory.h).
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "trace/compiled_call.h"
#include "trace/gpu.h"
#include "trace/graph_memory.h"

namespace ingot::trace {

namespace {

constexpr int kMostRecordings = 12;           // of one function; beyond, parameters move too often
constexpr std::size_t kMostWithBackward = 2;  // each keeps what it saves
constexpr std::int64_t kCopiedOutBytes = std::int64_t{64} << 20;

/// What a tensor that was handed out keeps: the graph busy, and the memory even without the graph.
struct Held {
    std::shared_ptr<int> token;
    at::Tensor made;
};

/// `made` again, keeping `token` as long as somebody has it.
at::Tensor handed_out(const at::Tensor& made, const std::shared_ptr<int>& token,
                      c10::Device device) {
    auto* held = new Held{token, made};
    const auto release = [](void* p) { delete static_cast<Held*>(p); };
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), made.storage().nbytes(),
        c10::DataPtr(made.storage().mutable_data(), held, release, device), nullptr, false);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(key_of(device)), made.dtype());
    t.unsafeGetTensorImpl()->set_storage_offset(made.storage_offset());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
    return t;
}

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

}  // namespace

/// One recorded graph with what it works on.
struct CompiledFunction::Captured {
    std::unique_ptr<GpuGraph> graph;
    std::shared_ptr<const at::Tensor> arena;
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

void CompiledFunction::prepare_graphs(std::span<const at::Tensor> examples) {
    copied_out_.assign(graph_.outputs().size(), false);
    for (std::size_t g = 0; g < reading_.size(); ++g) {
        if (from_caller_[g] < 0) {
            reading_[g] = Reading::InPlace;
        } else if (reading_[g] == Reading::Copied) {
            // Parameters as a rule; somebody's input that needs a gradient moves.
            const at::Tensor& t = examples[from_caller_[g]];
            if (t.requires_grad() && t.is_leaf()) reading_[g] = Reading::Movable;
        }
    }
    for (std::int32_t w : written_) reading_[w] = Reading::InPlace;
    if (!options_.cuda_graphs || !device_.is_cuda()) {
        graphs_.reason = device_.is_cuda() ? "not asked for" : "not on a GPU";
    } else {
        graphs_.wanted = true;
        graph_memory_ = std::make_shared<GraphMemory>(device_);
        graphs_.reason = "not recorded yet: the first call runs without";
    }
}

std::shared_ptr<const at::Tensor> GraphMemory::arena(std::int64_t bytes) {
    if (bytes == 0) return nullptr;
    const std::lock_guard lock(mutex_);
    expect(bytes);
    std::shared_ptr<const at::Tensor> known = arena_.lock();
    if (known != nullptr && known->numel() >= bytes) return known;
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    known = std::make_shared<const at::Tensor>(at::empty({expected_}, options));
    arena_ = known;
    return known;
}

void CompiledFunction::share_graph_memory(std::shared_ptr<GraphMemory> memory) {
    if (!graphs_.wanted) return;
    memory->expect(arena_bytes());
    graph_memory_ = std::move(memory);
}

void CompiledFunction::set_readings(std::vector<Reading> readings) {
    check(readings.size() == slots_.size(), "a reading for each input");
    for (std::size_t g = 0; g < reading_.size(); ++g)
        if (from_caller_[g] >= 0) reading_[g] = readings[from_caller_[g]];
    graphs_.alternates = true;
    graphs_.most = kMostWithBackward;
}

void CompiledFunction::copy_results_out(std::size_t count) {
    graphs_.most = kMostWithBackward;
    using Kind = OutputRecipe::Kind;
    const auto mark = [&](std::size_t first, std::size_t last, bool value) {
        for (std::size_t i = first; i < last; ++i)
            if (recipes_[i].kind == Kind::Graph || recipes_[i].kind == Kind::ViewOfGraph)
                copied_out_[recipes_[i].index] = value;
    };
    mark(0, count, true);
    mark(count, recipes_.size(), false);
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
    const BelowAutograd guard;
    for (const auto& g : graphs_.list)
        if (g->idle() && g->sized == sized && reads_in_place(*g, inputs) &&
            replay_graph(*g, inputs, variant, sized, outputs))
            return true;
    if (!make_room(inputs, sized)) return false;
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

/// False if the frozen values have been replaced since `g` was recorded.
bool CompiledFunction::replay_graph(Captured& g, std::span<c10::TensorImpl* const> inputs,
                                    const std::shared_ptr<const Variant>& variant,
                                    const std::shared_ptr<const Sized>& sized,
                                    std::vector<at::Tensor>& outputs) {
    CallFrame frame{inputs, variant, sized, {}, &**g.context, {}, {}};
    if (sized->instance->has_frozen_steps()) freeze(frame);
    if (g.context->operator->()->frozen() != g.frozen) return false;
    for (std::size_t i = 0; i < g.copies.size(); ++i)
        if (g.copies[i].defined()) g.copies[i].copy_(borrow(graph_input(inputs, i)), true);
    sized->instance->check_gpu_error();
    g.graph->replay();
    const auto slots = sized->instance->outputs();
    for (std::size_t o = 0; o < g.outputs.size(); ++o) {
        const at::Tensor& made = g.outputs[o];
        if (slots[o].writes_input >= 0) {
            frame.outputs.push_back(made);
            note_written(slots[o].writes_input, *graph_input(inputs, slots[o].writes_input));
        } else if (copied_out_[o] && slots[o].layout.bytes <= kCopiedOutBytes &&
                   made.storage_offset() == 0) {
            frame.outputs.push_back(
                at::empty_strided(made.sizes(), made.strides(), made.options()).copy_(made, true));
        } else {
            frame.outputs.push_back(handed_out(made, g.token, device_));
        }
    }
    build_outputs(frame, outputs);
    return true;
}

/// Makes room for another graph; false if all there may be are wanted.
bool CompiledFunction::make_room(std::span<c10::TensorImpl* const> inputs,
                                 const std::shared_ptr<const Sized>& sized) {
    auto& list = graphs_.list;
    // One that only lacks inputs which do not stay where they are: these are copied from now on.
    for (auto& g : list) {
        if (!g->idle() || g->sized != sized || !reads_in_place(*g, inputs, false)) continue;
        for (std::size_t i = 0; i < reading_.size(); ++i)
            if (reading_[i] == Reading::Movable && !g->copies[i].defined() &&
                g->addresses[i] != data_of(*graph_input(inputs, i), false))
                reading_[i] = Reading::Copied;
        g.reset();
    }
    std::erase(list, nullptr);
    // Of a program that another one has taken the place of.
    if (symbols_.empty())
        std::erase_if(list, [&](const auto& g) { return g->idle() && g->sized != sized; });
    const auto unfit = [&](const auto& g) {
        return g->idle() && (g->sized != sized || !reads_in_place(*g, inputs));
    };
    if (!graphs_.alternates) std::erase_if(list, unfit);
    if (list.size() < graphs_.most) return true;
    const auto oldest = std::ranges::find_if(list, unfit);
    if (oldest == list.end()) return false;
    list.erase(oldest);
    return true;
}

/// movable: whether Movable inputs count.
bool CompiledFunction::reads_in_place(const Captured& g, std::span<c10::TensorImpl* const> inputs,
                                      bool movable) const {
    for (std::size_t i = 0; i < g.addresses.size(); ++i)
        if (!g.copies[i].defined() && (movable || reading_[i] != Reading::Movable) &&
            g.addresses[i] != data_of(*graph_input(inputs, i), false))
            return false;
    return true;
}

void CompiledFunction::record_graph(std::span<c10::TensorImpl* const> inputs,
                                    const std::shared_ptr<const Variant>& variant,
                                    const std::shared_ptr<const Sized>& sized) {
    ++graphs_.recordings;
    auto g = std::make_unique<Captured>();
    g->graph = graph_memory_->make_graph();
    if (!g->graph) throw NotSupported("this PyTorch was built without CUDA");
    const runtime::Instance& instance = *sized->instance;
    g->sized = sized;
    g->context.emplace(instance.lease());
    g->arena = graph_memory_->arena(instance.arena_bytes());
    if (g->arena) (*g->context)->lend_arena(g->arena->mutable_data_ptr());
    CallFrame frame{inputs, variant, sized, {}, &**g->context, {}, {}};
    for (std::size_t i = 0; i < from_caller_.size(); ++i) {
        c10::TensorImpl* impl = graph_input(inputs, i);
        const bool written =
            std::ranges::find(written_, static_cast<std::int32_t>(i)) != written_.end();
        const bool odd = !aligned(data_of(*impl, written));
        if (odd && written) throw NotSupported("a written input at an odd address");
        at::Tensor copy;
        if (odd || reading_[i] == Reading::Copied) {
            copy = at::empty_strided(impl->sizes(), impl->strides(), borrow(impl).options());
            copy.copy_(borrow(impl));
        }
        void* at = data_of(copy.defined() ? *copy.unsafeGetTensorImpl() : *impl, false);
        g->addresses.push_back(at);
        g->copies.push_back(std::move(copy));
        frame.context->set_input(i, at);
    }
    // Which may be the first to make these values, from the inputs.
    if (instance.has_frozen_steps()) freeze(frame);
    g->frozen = frame.context->frozen();
    const auto slots = instance.outputs();
    bool recorded = false;
    const auto work = [&] {
        frame.outputs.clear();
        bind_outputs(frame);
        instance.run(*frame.context, threads_, nullptr, false);
        collect(frame);
        for (std::size_t o = 0; o < slots.size(); ++o)
            if (slots[o].writes_input >= 0 && slots[o].mode != runtime::OutputMode::Done)
                borrow(graph_input(inputs, slots[o].writes_input)).copy_(frame.outputs[o]);
        // The first run's results are nobody's: their memory is for the recording.
        if (!std::exchange(recorded, true)) frame.outputs.clear();
    };
    // Recording runs the work once.
    c10::SmallVector<at::Tensor, 4> before;
    for (std::int32_t w : written_) before.push_back(borrow(graph_input(inputs, w)).clone());
    const auto restore = [&] {
        for (std::size_t i = 0; i < written_.size(); ++i)
            borrow(graph_input(inputs, written_[i])).copy_(before[i]);
    };
    try {
        g->graph->record(work);
    } catch (...) {
        restore();
        throw;
    }
    restore();
    for (std::size_t o = 0; o < slots.size(); ++o)
        if (slots[o].mode != runtime::OutputMode::Done && frame.outputs[o].device() != device_)
            throw NotSupported("a result on another device");
    g->outputs = std::move(frame.outputs);
    graphs_.list.push_back(std::move(g));
}

}  // namespace ingot::trace
