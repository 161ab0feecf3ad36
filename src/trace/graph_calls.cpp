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
// the backward's graphs read it where it lies. One of them for each graph of the forward works in
// that one's room (graph_memory.h): it overwrites what is saved, so it is replayed only where the
// call holds the last reference to each saved value, and the forward not while somebody holds what
// it made. For other calls there is another one, which only reads.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "trace/compiled_call.h"
#include "trace/gpu.h"
#include "trace/graph_memory.h"
#include "trace/output_tensor.h"

namespace ingot::trace {

namespace {

constexpr int kMostRecordings = 12;           // of one function; beyond, parameters move too often
constexpr std::size_t kMostWithBackward = 2;  // each keeps what it saves
constexpr std::int64_t kCopiedOutBytes = std::int64_t{64} << 20;

/// What a tensor that was handed out keeps: the graph busy, and the memory even without the graph.
struct Held {
    std::shared_ptr<int> token;
    at::Tensor made;
    std::shared_ptr<const void> room;  // or that something lies in one
};

/// `made` again, whose memory `data` owns.
at::Tensor lying_at(const at::Tensor& made, c10::DataPtr data) {
    const c10::Device device = data.device();
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                         made.storage().nbytes(), std::move(data),
                                                         nullptr, false);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(key_of(device)), made.dtype());
    t.unsafeGetTensorImpl()->set_storage_offset(made.storage_offset());
    t.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
    return t;
}

/// `made` again, keeping what `held` says as long as somebody has it.
at::Tensor handed_out(const at::Tensor& made, Held held) {
    const auto release = [](void* p) { delete static_cast<Held*>(p); };
    return lying_at(made, c10::DataPtr(made.storage().mutable_data(), new Held(std::move(held)),
                                       release, made.device()));
}

/// `made` again, without keeping its memory.
at::Tensor lent(const at::Tensor& made) {
    return lying_at(made, c10::DataPtr(made.storage().mutable_data(), made.device()));
}

/// Whether nobody but the one reference at hand leads to the tensor or its memory.
bool is_last(c10::TensorImpl* t) {
    return c10::raw::intrusive_ptr::use_count(t) == 1 && t->unsafe_storage().use_count() == 1;
}

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

}  // namespace

/// One recorded graph with what it works on.
struct CompiledFunction::Captured {
    std::shared_ptr<GpuGraph> graph;    // null where a room has it
    std::shared_ptr<GraphRoom> room;    // of a forward
    std::weak_ptr<GraphRoom> works_in;  // of a backward's that overwrites what is saved
    bool in_room = false;               // it is such a one
    bool results_apart = false;         // which has results of its own
    bool replayed = false;
    std::shared_ptr<const at::Tensor> arena;  // where there is no room
    std::shared_ptr<const Sized> sized;
    std::optional<runtime::Instance::Lease> context;
    std::vector<void*> addresses;             // by graph input: where it lies
    std::vector<at::Tensor> copies;           // by graph input, or undefined: read in place
    std::size_t first_steps = 0;              // are launched ahead of the graph, as they read
    std::vector<bool> ahead;                  // these graph inputs, wherever they lie
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
    graphs_.calls = 1;  // it has run before: behind the forward's calls that no graph served
}

void CompiledFunction::save_in_rooms(std::vector<bool> outputs) {
    if (graphs_.wanted) graphs_.saved = std::move(outputs);
}

std::int64_t CompiledFunction::room_bytes(const CompiledFunction& backward,
                                          const std::vector<bool>& dying, bool results) const {
    const auto mine = variant_.load()->fixed, its = backward.variant_.load()->fixed;
    if (mine == nullptr || its == nullptr) return 0;
    std::int64_t stays = 0;
    for (const runtime::OutputSlot& slot : mine->instance->outputs()) stays += slot.layout.bytes;
    std::vector<bool> given(its->instance->inputs().size(), false);
    for (std::size_t g = 0; g < given.size(); ++g) {
        given[g] = backward.from_caller_[g] >= 0 && dying[backward.from_caller_[g]];
        if (given[g]) stays -= its->instance->inputs()[g].bytes;
    }
    return std::max(mine->instance->most_lent({}, true),
                    stays + its->instance->most_lent(given, results));
}

void CompiledFunction::enter_rooms(const std::vector<bool>& inputs) {
    if (!graphs_.wanted) return;
    graphs_.dying.assign(reading_.size(), false);
    for (std::size_t g = 0; g < reading_.size(); ++g)
        graphs_.dying[g] = from_caller_[g] >= 0 && inputs[from_caller_[g]];
    using Kind = OutputRecipe::Kind;
    for (const OutputRecipe& r : recipes_)  // what is a result as well
        if (r.kind == Kind::Input || r.kind == Kind::ViewOfInput) graphs_.dying[r.index] = false;
    if (std::ranges::find(graphs_.dying, true) == graphs_.dying.end()) graphs_.dying.clear();
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
    drop_unusable(inputs, sized);
    for (const auto& g : graphs_.list)
        if (serves(*g, inputs, sized) && replay_graph(*g, inputs, variant, sized, outputs))
            return true;
    if (!make_space(inputs, sized)) return false;
    if (const auto room = room_of(inputs); room != nullptr && room->entered) {
        const auto works_there = [&](const auto& g) { return g->works_in.lock() == room; };
        // Its graph fits no more and there is no second one: the forward makes another room.
        if (std::ranges::none_of(graphs_.list, works_there)) {
            room->stale = true;
            return false;
        }
    }
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

/// Drops graphs that cannot serve again.
void CompiledFunction::drop_unusable(std::span<c10::TensorImpl* const> inputs,
                                     const std::shared_ptr<const Sized>& sized) {
    std::erase_if(graphs_.list, [&](const std::unique_ptr<Captured>& g) {
        if (g->in_room) return g->works_in.expired();
        if (g->room == nullptr || !g->idle()) return false;
        if (g->room->stale) return true;
        // Gradients are still there when the next forward begins, and may be every time.
        if (g->sized != sized || !reads_in_place(*g, inputs) || !g->room->has_results())
            return false;
        graph_memory_->keep_results_apart();
        return true;
    });
}

bool CompiledFunction::serves(const Captured& g, std::span<c10::TensorImpl* const> inputs,
                              const std::shared_ptr<const Sized>& sized) const {
    if (!g.idle() || g.sized != sized || !reads_in_place(g, inputs)) return false;
    if (g.room != nullptr) return !g.room->has_results();
    return !g.in_room || gives_inputs_away(inputs);
}

/// Whether all that a graph in a room may overwrite is this call's alone. A second backward, a hook
/// on saved tensors or whoever else has got hold of one makes this false.
bool CompiledFunction::gives_inputs_away(std::span<c10::TensorImpl* const> inputs) const {
    for (std::size_t i = 0; i < graphs_.dying.size(); ++i)
        if (graphs_.dying[i] && !is_last(graph_input(inputs, i))) return false;
    return true;
}

/// Where the forward has saved all of a backward's inputs that may be overwritten.
std::shared_ptr<GraphRoom> CompiledFunction::room_of(
    std::span<c10::TensorImpl* const> inputs) const {
    std::shared_ptr<GraphRoom> room;
    for (std::size_t i = 0; i < graphs_.dying.size(); ++i) {
        if (!graphs_.dying[i]) continue;
        const void* const at = data_of(*graph_input(inputs, i), false);
        if (at == nullptr) continue;  // of no elements
        if (room == nullptr) room = graph_memory_->room_of(at);
        if (room == nullptr || !room->saved_at(at)) return nullptr;
    }
    return room;
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
    if (!std::exchange(g.replayed, true) && g.in_room) graph_memory_->empty_caches();
    const std::shared_ptr<GraphRoom> room = g.in_room ? g.works_in.lock() : g.room;
    GpuGraph& graph = *(g.in_room ? room->backward : g.graph);
    if (g.first_steps > 0) {
        runtime::Context& context = **g.context;
        for (std::size_t i = 0; i < g.ahead.size(); ++i)
            if (g.ahead[i]) context.set_input(i, data_of(*graph_input(inputs, i), false));
        graph.take_turn();
        sized->instance->run_first(context, g.first_steps);
    }
    graph.replay();
    const auto hold = [&](std::size_t o) {
        Held held{g.token, g.outputs[o], nullptr};
        if (g.room != nullptr && graphs_.saved[o]) held.room = room;
        if (g.in_room && !g.results_apart) held.room = room->results;
        return held;
    };
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
            frame.outputs.push_back(handed_out(made, hold(o)));
        }
    }
    build_outputs(frame, outputs);
    return true;
}

/// Makes space for another graph; false if all there may be are wanted.
bool CompiledFunction::make_space(std::span<c10::TensorImpl* const> inputs,
                                  const std::shared_ptr<const Sized>& sized) {
    auto& list = graphs_.list;
    // One that only lacks inputs which do not stay where they are: these are copied from now on.
    for (auto& g : list) {
        if (!g->idle() || g->sized != sized || !reads_in_place(*g, inputs, false)) continue;
        if (g->in_room && reads_in_place(*g, inputs)) continue;  // is waiting for other calls
        for (std::size_t i = 0; i < reading_.size(); ++i)
            if (reading_[i] == Reading::Movable && !g->copies[i].defined()) {
                const void* const at = data_of(*graph_input(inputs, i), false);
                if (g->ahead[i] ? !aligned(at) : g->addresses[i] != at)
                    reading_[i] = Reading::Copied;
            }
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
    for (std::size_t i = 0; i < g.addresses.size(); ++i) {
        if (g.copies[i].defined() || (!movable && reading_[i] == Reading::Movable)) continue;
        const void* const at = data_of(*graph_input(inputs, i), false);
        if (g.ahead[i] ? !aligned(at) : g.addresses[i] != at) return false;
    }
    return true;
}

/// Gradients of results are where somebody else has made them. What reads a big one is launched
/// ahead of the graph, if that is little and nothing else comes before: it then need not stay where
/// it was, nor be copied.
void CompiledFunction::find_ahead(Captured& g) const {
    g.ahead.assign(reading_.size(), false);
    if (graphs_.dying.empty()) return;
    for (std::size_t i = 0; i < reading_.size(); ++i) {
        if (reading_[i] != Reading::Movable || g.copies[i].defined()) continue;
        const std::size_t steps = g.sized->instance->steps_until_read(i);
        g.ahead[i] = steps > 0;
        g.first_steps = std::max(g.first_steps, steps);
    }
}

void CompiledFunction::record_graph(std::span<c10::TensorImpl* const> inputs,
                                    const std::shared_ptr<const Variant>& variant,
                                    const std::shared_ptr<const Sized>& sized) {
    ++graphs_.recordings;
    auto g = std::make_unique<Captured>();
    // The room that it is recorded in, if it is a backward's.
    std::shared_ptr<GraphRoom> room = room_of(inputs);
    if (room != nullptr && (room->entered || !gives_inputs_away(inputs))) room = nullptr;
    g->graph = graph_memory_->make_graph(room != nullptr ? room->forward.get() : nullptr);
    if (!g->graph) throw NotSupported("this PyTorch was built without CUDA");
    const runtime::Instance& instance = *sized->instance;
    g->sized = sized;
    g->context.emplace(instance.lease());
    const bool by_pieces = !graphs_.saved.empty() || !graphs_.dying.empty();
    if (!by_pieces) g->arena = graph_memory_->arena(instance.arena_bytes());
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
    find_ahead(*g);
    // Which may be the first to make these values, from the inputs.
    if (instance.has_frozen_steps()) freeze(frame);
    g->frozen = frame.context->frozen();
    const auto slots = instance.outputs();
    g->results_apart = room != nullptr && graph_memory_->results_apart();
    std::vector<at::Tensor> apart(slots.size());  // results of the first run that stay
    bool recorded = false;
    const auto make = [&](std::size_t o) {
        at::Tensor& made = frame.outputs[o];
        made = apart[o].defined() ? apart[o] : make_output(slots[o].layout, device_);
        return made.mutable_data_ptr();
    };
    const auto done = [&](std::size_t i) {
        if (recorded && room != nullptr && graphs_.dying[i])
            room->release(data_of(*graph_input(inputs, i), false));
    };
    const auto work = [&] {
        frame.outputs.clear();
        std::optional<RecordingMemory> memory;
        if (by_pieces) {
            frame.outputs.resize(slots.size());
            memory.emplace(device_, make, done, recorded ? g->first_steps : 0);
            if (recorded && room == nullptr && !graphs_.saved.empty())
                memory->take_at_once(graph_memory_->room_bytes());
        } else {
            bind_outputs(frame);
        }
        instance.run(*frame.context, threads_, memory ? &*memory : nullptr, false);
        collect(frame);
        for (std::size_t o = 0; o < slots.size(); ++o)
            if (slots[o].writes_input >= 0 && slots[o].mode != runtime::OutputMode::Done)
                borrow(graph_input(inputs, slots[o].writes_input)).copy_(frame.outputs[o]);
        // Libraries make their results where they like.
        for (std::size_t o = 0; o < slots.size(); ++o)
            if (apart[o].defined() && !apart[o].is_same(frame.outputs[o]))
                frame.outputs[o] = apart[o].copy_(frame.outputs[o]);
        if (std::exchange(recorded, true)) return;
        // The first run's results are nobody's: their memory is for the recording.
        if (g->results_apart) apart.assign(frame.outputs.begin(), frame.outputs.end());
        frame.outputs.clear();
    };
    // Recording runs the work once.
    c10::SmallVector<at::Tensor, 4> before;
    for (std::int32_t w : written_) before.push_back(borrow(graph_input(inputs, w)).clone());
    const auto restore = [&] {
        for (std::size_t i = 0; i < written_.size(); ++i)
            borrow(graph_input(inputs, written_[i])).copy_(before[i]);
    };
    if (room != nullptr) room->entered = true;  // from here on saved values may be gone
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
    if (!graphs_.saved.empty()) {
        g->room = std::make_shared<GraphRoom>();
        g->room->forward = g->graph;
        for (std::size_t o = 0; o < slots.size(); ++o) {
            if (!graphs_.saved[o]) continue;
            at::Tensor& made = g->outputs[o];
            g->room->save(std::exchange(made, lent(made)));
        }
        graph_memory_->add(g->room);
    }
    if (room != nullptr) {
        room->backward = std::move(g->graph);
        g->works_in = room;
        g->in_room = true;
    }
    graphs_.list.push_back(std::move(g));
}

}  // namespace ingot::trace
