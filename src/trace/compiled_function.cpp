// Making and calling compiled functions; see compiled_function.h.
#include "trace/compiled_function.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "ir/relation.h"
#include "trace/compiled_call.h"
#include "trace/draw_state.h"
#include "trace/dtypes.h"
#include "trace/output_tensor.h"
#include "trace/replay.h"
#include "trace/silent_changes.h"
#include "trace/symbol_values.h"
#include "trace/vendor.h"

namespace ingot::trace {
namespace {

using runtime::OutputMode;
using runtime::OutputSlot;

/// Written inputs of which a copy costs little.
constexpr std::int64_t kSmall = 16 << 10;
/// Calls that touch less memory than this keep Python's lock.
constexpr std::int64_t kShortBytes = 64 << 10;
/// Sets of sizes kept ready; each keeps arenas of its own.
constexpr std::size_t kRecentSizes = 8;
constexpr std::int64_t kRecentBytes = std::int64_t{512} << 20;

/// Keys that make an operator mean something else; autograd and the like do not.
c10::DispatchKeySet meaning_keys(const c10::TensorImpl& t) {
    static constexpr c10::DispatchKeySet kIgnored =
        c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
        c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    return t.key_set() - kIgnored;
}

/// Whether it is a GPU's error of an earlier call, which nobody else will tell of.
bool is_late(const std::exception& e) {
    return dynamic_cast<const Error*>(&e) != nullptr &&
           dynamic_cast<const InternalError*>(&e) == nullptr &&
           dynamic_cast<const NotSupported*>(&e) == nullptr;
}

/// Whether the call depends on symbols beside its operands' sizes: arguments, or strides.
bool has_symbols(const ExternCallee& callee) {
    for (const auto* all : {&callee.operand_strides, &callee.result_strides})
        for (const Sizes& strides : *all)
            if (!std::ranges::all_of(strides, &Expr::is_constant)) return true;
    const auto symbolic = [](const c10::IValue& v) {
        return v.isSymInt() || (v.isScalar() && v.toScalar().isSymbolic());
    };
    return std::ranges::any_of(callee.arguments, [&](const c10::IValue& v) {
        if (symbolic(v)) return true;
        return v.isList() && std::ranges::any_of(v.toListRef(), symbolic);
    });
}

}  // namespace

CompiledFunction::CompiledFunction(Recording recording, std::span<const at::Tensor> examples,
                                   std::span<const at::Tensor> promises,
                                   std::vector<at::Tensor> outputs,
                                   std::shared_ptr<const runtime::Compiler> compiler,
                                   runtime::CompileOptions options,
                                   const runtime::InterruptCheck& interrupted,
                                   const MakingEvents& events)
    : graph_(std::move(recording.graph)),
      output_promises_(std::move(outputs)),
      recipes_(std::move(recording.outputs)),
      log_(std::move(recording.log)),
      numbers_(std::move(recording.numbers)),
      computed_(std::move(recording.computed)),
      device_(recording.device),
      draws_(recording.uses_random),
      all_matter_(std::ranges::any_of(recording.externs, has_symbols)),
      compiler_(std::move(compiler)),
      options_(std::move(options)),
      externs_(std::make_unique<TorchExterns>(std::move(recording.externs), device_)) {
    for (const InputSource& source : recording.inputs) {
        input_promises_.push_back(source.promise);
        captured_.push_back(source.captured);
        silent_.push_back(source.silent);
        offsets_.push_back(source.offset);
    }
    from_caller_.assign(input_promises_.size(), -1);
    add_slots(examples, promises);
    for (const Input& in : graph_.inputs()) {
        reading_.push_back(in.frozen ? Reading::InPlace : Reading::Copied);
        names_.push_back(in.name);
    }
    prepare_graph(examples);
    find_symbols();
    prepare_graphs(examples);
    last_states_.resize(input_promises_.size());
    changes_.resize(input_promises_.size());
    packs_later_ = should_pack_later();
    auto variant = compile(graph_, !packs_later_.load(), &report_, interrupted, events);
    find_what_matters(*variant->program);
    if (!symbols_.empty()) make_ready(*variant, recording.hint);
    if (variant->fixed) {
        const runtime::Instance& instance = *variant->fixed->instance;
        std::int64_t touched = 0;
        for (const runtime::Layout& l : instance.inputs()) touched += l.bytes;
        for (const OutputSlot& o : instance.outputs()) touched += o.layout.bytes;
        short_ = device_.is_cpu() && instance.extern_count() == 0 && instance.launch_count() <= 2 &&
                 touched <= kShortBytes;
    }
    variant_.store(std::move(variant));
    tunes_ = should_tune();
}

CompiledFunction::~CompiledFunction() = default;

void CompiledFunction::add_slots(std::span<const at::Tensor> examples,
                                 std::span<const at::Tensor> promises) {
    for (std::size_t i = 0; i < examples.size(); ++i) {
        const at::Tensor& t = examples[i];
        Slot slot{{}, {}, t.scalar_type(), t.device(), meaning_keys(*t.unsafeGetTensorImpl())};
        for (std::size_t g = 0; g < input_promises_.size(); ++g)
            if (input_promises_[g].is_same(promises[i]))
                slot.graph_input = static_cast<std::int32_t>(g);
        check(slot.graph_input >= 0, "an input of the recording is not in its graph");
        slot.sizes = graph_.type(graph_.inputs()[slot.graph_input].value).sizes;
        slot.strides = graph_.inputs()[slot.graph_input].strides;
        slot.offset = offsets_[slot.graph_input];
        if (from_caller_[slot.graph_input] < 0)
            from_caller_[slot.graph_input] = static_cast<std::int32_t>(i);
        slots_.push_back(std::move(slot));
    }
    for (std::size_t g = 0; g < from_caller_.size(); ++g)
        check(from_caller_[g] >= 0 || captured_[g].defined(), "a graph input has no source");
}

void CompiledFunction::prepare_graph(std::span<const at::Tensor> examples) {
    if (device_.is_cuda()) options_.gpu = device_.index();
    auto& inputs = graph_.mutable_inputs();
    for (const Output& o : graph_.outputs())
        if (o.writes_input >= 0) {
            inputs[o.writes_input].frozen = false;
            written_.push_back(o.writes_input);
        }
    for (std::size_t g = 0; g < inputs.size(); ++g) {
        const at::Tensor& t = captured_[g].defined() ? captured_[g] : examples[from_caller_[g]];
        // Without a version counter nobody can tell whether the tensor has changed.
        if (!options_.freezing || t.is_inference() ||
            is_shared_with_processes(*t.unsafeGetTensorImpl()))
            inputs[g].frozen = false;
    }
}

std::shared_ptr<const CompiledFunction::Variant> CompiledFunction::compile(
    const Graph& graph, bool pack, runtime::CompileReport* report,
    const runtime::InterruptCheck& interrupted, const MakingEvents& events) {
    const c10::OptionalDeviceGuard on_device(gpu());
    std::lock_guard turn(graph.pool().turn());
    runtime::CompileEvents told{{}, events.waiting};
    if (events.planned) told.planned = [&](const Plan& plan) { events.planned(plan, *externs_); };
    return variant_of(compiler_->compile(graph, options_for(pack), report, interrupted, told));
}

runtime::CompileOptions CompiledFunction::options_for(bool pack) const {
    runtime::CompileOptions options = options_;
    if (options.cores == 0) options.cores = at::get_num_threads();
    options.pack_matmuls = pack;
    return options;
}

std::shared_ptr<const CompiledFunction::Variant> CompiledFunction::variant_of(
    std::shared_ptr<const runtime::Program> program) const {
    auto variant = std::make_shared<Variant>();
    variant->program = std::move(program);
    for (Expr symbol : variant->program->symbols())
        check(std::ranges::find(symbols_, symbol) != symbols_.end(),
              "the program has a symbol that its graph has not");
    if (symbols_.empty()) variant->fixed = sized(*variant, {});
    return variant;
}

// ---- sizes ----

void CompiledFunction::find_symbols() {
    for (Expr e : numbers_) collect_symbols(e, symbols_);
    for (const Input& in : graph_.inputs())
        for (Expr e : graph_.type(in.value).sizes) collect_symbols(e, symbols_);
    for (const SizeGuard& g : graph_.guards()) {
        collect_symbols(g.left, symbols_);
        collect_symbols(g.right, symbols_);
    }
    for (Expr e : computed_) collect_symbols(e, symbols_);
    for (Expr symbol : symbols_) {
        Source source;
        for (std::size_t i = 0; i < numbers_.size() && source.number < 0; ++i)
            if (numbers_[i] == symbol) source.number = static_cast<std::int32_t>(i);
        for (std::size_t i = 0; i < slots_.size() && source.number < 0 && source.input < 0; ++i)
            for (std::size_t d = 0; d < slots_[i].sizes.size(); ++d)
                if (slots_[i].sizes[d] == symbol) {
                    source.input = static_cast<std::int32_t>(i);
                    source.dim = static_cast<std::int32_t>(d);
                }
        check(source.number >= 0 || source.input >= 0, "a symbol that no input shows");
        sources_.push_back(source);
    }
}

void CompiledFunction::find_what_matters(const runtime::Program& program) {
    std::vector<Expr> found(program.symbols().begin(), program.symbols().end());
    const auto look = [&](const Sizes& sizes) {
        for (Expr e : sizes) collect_symbols(e, found);
    };
    for (const Slot& s : slots_) {
        look(s.sizes);
        look(s.strides);
    }
    for (const OutputRecipe& r : recipes_) {
        look(r.sizes);
        look(r.strides);
        collect_symbols(r.offset, found);
        if (r.steps) collect_symbols(*r.steps, found);
    }
    for (Expr symbol : symbols_)
        matters_.push_back(all_matter_ || std::ranges::find(found, symbol) != found.end());
    all_matter_ = std::ranges::find(matters_, false) == matters_.end();
}

bool CompiledFunction::serves(const Sized& sized, std::span<const std::int64_t> values) const {
    for (std::size_t s = 0; s < values.size(); ++s)
        if (matters_[s] && sized.values[s] != values[s]) return false;
    return true;
}

bool CompiledFunction::read_values(std::span<c10::TensorImpl* const> inputs,
                                   std::span<const std::int64_t> numbers,
                                   std::span<std::int64_t> values) const {
    if (numbers.size() != numbers_.size() || inputs.size() != slots_.size()) return false;
    for (std::size_t s = 0; s < symbols_.size(); ++s) {
        const Source& source = sources_[s];
        if (source.number >= 0) {
            values[s] = numbers[source.number];
        } else {
            const c10::TensorImpl& t = *inputs[source.input];
            if (t.dim() <= source.dim) return false;
            values[s] = t.sizes()[source.dim];
        }
    }
    return true;
}

bool CompiledFunction::guards_hold(std::span<const std::int64_t> values) const {
    for (std::size_t s = 0; s < symbols_.size(); ++s) {
        const Range range = symbols_[s].range();
        if (values[s] < range.lo || values[s] > range.hi) return false;
    }
    const auto value = values_of(symbols_, values);
    return std::ranges::all_of(graph_.guards(), [&](const SizeGuard& g) {
        return holds(g.relation, evaluate(g.left, value), evaluate(g.right, value));
    });
}

std::shared_ptr<const CompiledFunction::Sized> CompiledFunction::sized(
    const Variant& variant, std::span<const std::int64_t> values) const {
    auto made = std::make_shared<Sized>();
    made->values.assign(values.begin(), values.end());
    const auto value = values_of(symbols_, values);
    const auto number = [&](Expr e) { return e.is_constant() ? e.constant() : evaluate(e, value); };
    const auto view = [&](const Sizes& sizes, const Sizes& strides, Expr offset) {
        Sized::View v;
        for (Expr e : sizes) v.sizes.push_back(number(e));
        for (Expr e : strides) v.strides.push_back(number(e));
        v.offset = number(offset);
        return v;
    };
    for (const Slot& s : slots_) made->inputs.push_back(view(s.sizes, s.strides, 0));
    for (const OutputRecipe& r : recipes_) {
        made->views.push_back(view(r.sizes, r.strides, r.offset));
        made->views.back().steps = numbered(r.steps, value);
    }
    for (Expr e : computed_) made->computed.push_back(number(e));
    Numbers wanted;
    for (Expr symbol : variant.program->symbols()) wanted.push_back(value(symbol));
    made->instance = variant.program->instance(externs_->at(value), wanted);
    return made;
}

/// The form for the example's sizes: what keeps the program from being carried out is met while it
/// is made, not by a call.
void CompiledFunction::make_ready(const Variant& variant,
                                  const std::function<std::int64_t(Expr)>& hint) const {
    if (!hint) return;
    Numbers values;
    for (Expr symbol : symbols_) values.push_back(hint(symbol));
    auto made = sized(variant, values);
    std::lock_guard lock(variant.mutex);
    variant.recent.push_back(std::move(made));
}

std::shared_ptr<const CompiledFunction::Sized> CompiledFunction::find_sized(
    const Variant& variant, std::span<c10::TensorImpl* const> inputs,
    std::span<const std::int64_t> numbers) const {
    Numbers values(symbols_.size());
    if (!read_values(inputs, numbers, values)) return nullptr;
    std::lock_guard lock(variant.mutex);
    auto& recent = variant.recent;
    for (auto it = recent.begin(); it != recent.end(); ++it)
        if (serves(**it, values)) {
            // What else there is, guards alone may depend on.
            if (!std::ranges::equal((*it)->values, values) && !guards_hold(values)) return nullptr;
            std::rotate(recent.begin(), it, it + 1);
            return recent.front();
        }
    if (!guards_hold(values)) return nullptr;
    auto made = sized(variant, values);
    recent.insert(recent.begin(), made);
    std::int64_t memory = 0;
    std::size_t keep = 0;
    for (; keep < recent.size() && keep < kRecentSizes; ++keep) {
        memory += recent[keep]->instance->arena_bytes();
        if (keep > 0 && memory > kRecentBytes) break;
    }
    recent.resize(keep);
    return made;
}

std::vector<std::string> CompiledFunction::guards() const {
    static constexpr const char* kSigns[] = {" == ", " != ", " < ", " <= "};
    std::vector<std::string> out;
    for (const SizeGuard& g : graph_.guards()) {
        std::string text = to_string(g.left);
        text.append(kSigns[static_cast<int>(g.relation)]).append(to_string(g.right));
        out.push_back(text.append("  (").append(g.reason).append(")"));
    }
    return out;
}

// ---- calling ----

c10::TensorImpl* CompiledFunction::graph_input(std::span<c10::TensorImpl* const> inputs,
                                               std::size_t g) const {
    return from_caller_[g] >= 0 ? inputs[from_caller_[g]] : captured_[g].unsafeGetTensorImpl();
}

bool CompiledFunction::accepts(const Sized& sized, std::span<c10::TensorImpl* const> inputs) const {
    if (inputs.size() != slots_.size()) return false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Slot& s = slots_[i];
        const c10::TensorImpl& t = *inputs[i];
        if (meaning_keys(t) != s.keys || t.dtype() != c10::scalarTypeToTypeMeta(s.dtype))
            return false;
        const Sized::View& expected = sized.inputs[i];
        if (t.sizes() != c10::IntArrayRef(expected.sizes) ||
            t.strides() != c10::IntArrayRef(expected.strides))
            return false;
        if (t.device() != s.device) return false;
        if (s.offset >= 0 && t.storage_offset() != s.offset) return false;
        // One tensor given twice was recorded as one.
        if (inputs[from_caller_[s.graph_input]] != inputs[i]) return false;
    }
    return written_.empty() || aliases_as_recorded(inputs);
}

bool CompiledFunction::aliases_as_recorded(std::span<c10::TensorImpl* const> inputs) const {
    // Recording refuses to write inputs that share memory, so no written one may share any now.
    const auto storage = [&](std::size_t g) {
        return graph_input(inputs, g)->unsafe_storage().unsafeGetStorageImpl();
    };
    for (std::int32_t w : written_)
        for (std::size_t g = 0; g < from_caller_.size(); ++g)
            if (static_cast<std::int32_t>(g) != w && storage(g) == storage(w)) return false;
    return true;
}

CallStatus CompiledFunction::call(std::span<c10::TensorImpl* const> inputs,
                                  std::vector<at::Tensor>& outputs,
                                  std::span<const std::int64_t> numbers,
                                  std::vector<std::int64_t>* computed,
                                  std::vector<at::Tensor>* given, GraphUse& use) {
    const c10::OptionalDeviceGuard on_device(gpu());
    std::shared_ptr<const Variant> variant = variant_.load();
    std::shared_ptr<const Sized> sized =
        variant->fixed ? variant->fixed : find_sized(*variant, inputs, numbers);
    if (!sized || !accepts(*sized, inputs)) return CallStatus::OtherInputs;
    if (packs_later_.load(std::memory_order_relaxed) && pack_if_unchanged(inputs)) [[unlikely]]
        return call(inputs, outputs, numbers, computed, given, use);
    if (tunes_.load(std::memory_order_relaxed) && tune()) [[unlikely]]
        return call(inputs, outputs, numbers, computed, given, use);
    if (computed != nullptr) {
        if (all_matter_) {
            *computed = sized->computed;
        } else {
            Numbers values(symbols_.size());
            read_values(inputs, numbers, values);
            computed->clear();
            for (Expr e : computed_) computed->push_back(evaluate(e, values_of(symbols_, values)));
        }
    }
    use.served = graphs_.wanted && use.allowed && call_graph(inputs, variant, sized, outputs);
    if (use.served) return CallStatus::Done;
    const runtime::Instance& instance = *sized->instance;
    // A GPU's arena is lent by its own allocator.
    runtime::SharedArena* const arena = device_.is_cpu() ? arena_.get() : nullptr;
    CallFrame frame{inputs, variant, sized, instance.lease(arena), nullptr, {}, {}};
    frame.context = &**frame.lease;
    std::optional<DrawState> draws;
    if (draws_) draws = DrawState::now(device_);
    const auto restore = [&] {
        if (draws) draws->restore();
        for (std::size_t i = 0; device_.is_cpu() && i < frame.saved.size(); ++i)
            if (frame.saved[i].defined())
                borrow(graph_input(inputs, written_[i])).data().copy_(frame.saved[i]);
    };
    Stage stage = Stage::Binding;
    try {
        std::optional<BelowAutograd> guard;
        if (instance.extern_count() != 0) guard.emplace();
        bind_inputs(frame);
        // Values of constants alone are frozen too, without any frozen input.
        if (instance.has_frozen_steps()) freeze(frame);
        if (frame.context->error() == kNoError) {
            // Direct calls keep memory for libraries. With graphs, few calls run without one; half
            // of a training step shares an arena, and has a peak that nothing should be added to.
            const bool direct = !graphs_.wanted && arena_ == nullptr;
            if (given != nullptr) {
                frame.outputs.resize(instance.outputs().size());
                GivenMemory memory(*this, frame, *given);
                stage = Stage::Running;
                instance.run(*frame.context, threads_, &memory, direct);
            } else {
                bind_outputs(frame);
                stage = Stage::Running;
                instance.run(*frame.context, threads_, nullptr, direct);
            }
        }
        stage = Stage::Collecting;
        if (frame.context->error() == kNoError) collect(frame);
    } catch (const FailedAssertion&) {
        restore();
        return CallStatus::KernelFailure;
    } catch (const std::exception& e) {  // of an operator that is called, above all
        restore();
        if (!can_put_back(frame, stage) || is_late(e)) throw;
        note_failure(e);
        return CallStatus::KernelFailure;
    }
    if (frame.context->error() != kNoError) {
        restore();
        return CallStatus::KernelFailure;
    }
    if (!written_.empty()) write_back(frame);
    build_outputs(frame, outputs);
    return CallStatus::Done;
}

/// Whether what the call has written so far, if anything, was put back from copies.
bool CompiledFunction::can_put_back(const CallFrame& frame, Stage stage) const {
    if (stage == Stage::Binding) return true;
    const runtime::Instance& instance = *frame.sized->instance;
    const std::size_t copies = device_.is_cpu() ? frame.saved.size() : 0;
    for (std::size_t i = 0; i < written_.size(); ++i) {
        const bool written = stage == Stage::Collecting || instance.is_written_early(written_[i]);
        if (written && (i >= copies || !frame.saved[i].defined())) return false;
    }
    return true;
}

/// An operator that raises is the program's affair, and eager says it in its own words.
void CompiledFunction::note_failure(const std::exception& failure) {
    using Kind = Failure::Kind;
    const auto* const error = dynamic_cast<const c10::Error*>(&failure);
    const bool of_memory = dynamic_cast<const c10::OutOfMemoryError*>(error) != nullptr ||
                           dynamic_cast<const std::bad_alloc*>(&failure) != nullptr;
    const bool defect = dynamic_cast<const ingot::Error*>(&failure) != nullptr;
    std::lock_guard lock(mutex_);
    const std::string what = error != nullptr ? error->what_without_backtrace() : failure.what();
    failure_ = Failure{of_memory ? Kind::Memory
                       : defect  ? Kind::Defect
                                 : Kind::Raised,
                       what.substr(0, what.find('\n')), std::current_exception()};
}

std::optional<Failure> CompiledFunction::take_failure() {
    std::lock_guard lock(mutex_);
    return std::exchange(failure_, std::nullopt);
}

CallStatus CompiledFunction::call_with(std::vector<at::Tensor>& inputs,
                                       std::vector<at::Tensor>& outputs,
                                       std::span<const std::int64_t> numbers, bool graph) {
    check(written_.empty(), "inputs that the program writes cannot be given away");
    c10::SmallVector<c10::TensorImpl*, 64> raw;
    for (const at::Tensor& t : inputs) raw.push_back(t.unsafeGetTensorImpl());
    GraphUse use{graph, false};
    return call(raw, outputs, numbers, nullptr, &inputs, use);
}

CallStatus CompiledFunction::call_tracked(std::span<c10::TensorImpl* const> inputs,
                                          std::vector<at::Tensor>& outputs,
                                          std::span<const std::int64_t> numbers,
                                          std::vector<std::int64_t>* computed, bool& by_graph) {
    GraphUse use;
    const CallStatus status = call(inputs, outputs, numbers, computed, nullptr, use);
    by_graph = use.served;
    return status;
}

void CompiledFunction::bind_inputs(CallFrame& frame) const {
    for (std::size_t g = 0; g < from_caller_.size(); ++g) {
        void* data = data_of(*graph_input(frame.inputs, g), false);
        // A GPU's kernels load 16 bytes at once.
        if (device_.is_cuda() && reinterpret_cast<std::uintptr_t>(data) % 16 != 0) [[unlikely]] {
            const at::Tensor misplaced = borrow(graph_input(frame.inputs, g));
            frame.saved.push_back(
                at::empty_strided(misplaced.sizes(), misplaced.strides(), misplaced.options()));
            data = frame.saved.back().copy_(misplaced).data_ptr();
        }
        frame.context->set_input(g, data);
    }
    for (std::int32_t w : written_) {
        c10::TensorImpl* impl = graph_input(frame.inputs, w);
        frame.context->set_input(w, data_of(*impl, true));
        if (device_.is_cuda() && reinterpret_cast<std::uintptr_t>(data_of(*impl, true)) % 16 != 0)
            throw NotSupported("a written input at an odd address");
        // What nothing can fail behind by its data needs no copy: an optimizer's states are large.
        // Behind what is small a library may lack memory, too.
        const runtime::Instance& instance = *frame.sized->instance;
        const bool small = impl->numel() * static_cast<std::int64_t>(impl->itemsize()) <= kSmall;
        const bool spoiled = !instance.on_gpu() &&
                             (instance.may_spoil(w) || (small && instance.is_written_early(w)));
        frame.saved.push_back(spoiled ? borrow(impl).detach().clone() : at::Tensor());
    }
}

void CompiledFunction::bind_outputs(CallFrame& frame) const {
    const auto slots = frame.sized->instance->outputs();
    frame.outputs.resize(slots.size());
    for (std::size_t o = 0; o < slots.size(); ++o) {
        if (slots[o].mode != OutputMode::Direct) continue;
        frame.outputs[o] = make_result(slots[o], o);
        frame.context->set_output(o, frame.outputs[o]
                                         .unsafeGetTensorImpl()
                                         ->unsafe_storage()
                                         .unsafeGetStorageImpl()
                                         ->_mutable_data_ptr_no_checks()
                                         .mutable_get());
    }
}

at::Tensor CompiledFunction::make_result(const runtime::OutputSlot& slot,
                                         std::size_t output) const {
    const bool returned = output < returned_.size() && returned_[output];
    return make_output(slot.layout, device_, returned ? WhenFreed::Returned : WhenFreed::Recycled);
}

void CompiledFunction::return_results(std::size_t count) {
    returned_.assign(graph_.outputs().size(), false);
    for (std::size_t i = 0; i < std::min(count, recipes_.size()); ++i) {
        using Kind = OutputRecipe::Kind;
        const OutputRecipe& r = recipes_[i];
        if (r.kind == Kind::Graph || r.kind == Kind::ViewOfGraph) returned_[r.index] = true;
    }
}

void CompiledFunction::collect(CallFrame& frame) const {
    for (std::size_t o = 0; o < frame.outputs.size(); ++o) collect(frame, o);
}

void CompiledFunction::collect(CallFrame& frame, std::size_t output) const {
    const OutputSlot& slot = frame.sized->instance->outputs()[output];
    if (slot.mode == OutputMode::Adopt) {
        const auto owner = frame.context->take_owner(slot.buffer);
        check(owner != nullptr, "an extern call left an output unmade");
        frame.outputs[output] = std::move(*static_cast<at::Tensor*>(owner.get()));
    } else if (slot.mode == OutputMode::Copy) {
        // Also what is going to be written into an input: it may have been read from another.
        frame.outputs[output] = make_result(slot, output);
        frame.outputs[output].copy_(
            tensor_over(frame.context->pointer(slot.buffer), slot.source, device_));
    }
}

void CompiledFunction::write_back(CallFrame& frame) const {
    const auto slots = frame.sized->instance->outputs();
    for (std::size_t o = 0; o < slots.size(); ++o) {
        if (slots[o].writes_input < 0) continue;
        c10::TensorImpl* impl = graph_input(frame.inputs, slots[o].writes_input);
        if (slots[o].mode != OutputMode::Done) {
            BelowAutograd guard;
            borrow(impl).copy_(frame.outputs[o]);
        }
        note_written(slots[o].writes_input, *impl);
    }
}

void CompiledFunction::note_written(std::int32_t input, c10::TensorImpl& tensor) const {
    if (silent_[input])
        note_silent_change(tensor);
    else if (tensor.version_counter().enabled())
        tensor.bump_version();
}

void CompiledFunction::build_outputs(CallFrame& frame, std::vector<at::Tensor>& outputs) const {
    outputs.clear();
    outputs.reserve(recipes_.size());
    for (std::size_t i = 0; i < recipes_.size(); ++i)
        outputs.push_back(build_output(frame, i, outputs));
}

at::Tensor CompiledFunction::build_output(const CallFrame& frame, std::size_t i,
                                          std::span<const at::Tensor> before) const {
    using Kind = OutputRecipe::Kind;
    const OutputRecipe& r = recipes_[i];
    const Sized::View& view = frame.sized->views[i];
    const auto looking_into = [&](const at::Tensor& base, std::int64_t offset) {
        if (view.steps && base.requires_grad() && at::GradMode::is_enabled()) {
            at::Tensor made = make_view(*view.steps, base);
            set_creation(made, r.marks);
            return made;
        }
        at::Tensor result =
            with_bits(base.as_strided(view.sizes, view.strides, offset + view.offset), r.marks);
        set_creation(result, r.marks);
        if (r.apart) {
            at::Tensor alias = result.variable_data();
            note_silent_change(*base.unsafeGetTensorImpl());
            return alias;
        }
        return r.detached ? result.detach() : result;
    };
    switch (r.kind) {
        case Kind::Graph:
            if (r.marks.any()) return as_marked(frame.outputs[r.index], r.marks);
            return frame.outputs[r.index];
        case Kind::Input:
            return borrow(graph_input(frame.inputs, r.index));
        case Kind::ViewOfInput: {
            const at::Tensor base = borrow(graph_input(frame.inputs, r.index));
            return looking_into(base, base.storage_offset());
        }
        case Kind::ViewOfGraph:
            (void)as_marked(frame.outputs[r.index], {.version = r.marks.version});
            return looking_into(frame.outputs[r.index], 0);
        case Kind::Same:
            return before[r.index];
        case Kind::None:
            break;
    }
    return {};
}

std::vector<at::Tensor> CompiledFunction::replay(std::span<c10::TensorImpl* const> inputs,
                                                 std::span<const std::int64_t> numbers) const {
    std::vector<at::Tensor> leaves;
    return replay_cut(inputs, numbers, {}, leaves);
}

std::vector<at::Tensor> CompiledFunction::replay_cut(std::span<c10::TensorImpl* const> inputs,
                                                     std::span<const std::int64_t> numbers,
                                                     std::span<const std::size_t> cuts,
                                                     std::vector<at::Tensor>& leaves) const {
    Numbers values(symbols_.size());
    check(read_values(inputs, numbers, values), "a replay without its inputs");
    Replay replay(values_of(symbols_, values));
    for (std::size_t g = 0; g < input_promises_.size(); ++g)
        replay.bind(input_promises_[g], borrow(graph_input(inputs, g)));
    std::vector<Replay::Cut> made;
    leaves.resize(cuts.size());
    for (std::size_t i = 0; i < cuts.size(); ++i)
        made.push_back({output_promises_[cuts[i]], leaves[i]});
    std::vector<at::Tensor> outputs = replay.run_cut(log_, output_promises_, made);
    for (std::size_t i = 0; i < made.size(); ++i) leaves[i] = std::move(made[i].leaf);
    return outputs;
}

void CompiledFunction::release_memory() {
    const c10::OptionalDeviceGuard on_device(gpu());
    drop_graphs();
    {
        std::lock_guard lock(mutex_);
        packing_.reset();
        tuning_.reset();
    }
    const std::shared_ptr<const Variant> variant = variant_.load();
    if (arena_) arena_->clear();
    if (variant->fixed) return variant->fixed->instance->drop_frozen();
    std::lock_guard lock(variant->mutex);
    // Frozen values are shared by all sizes.
    if (!variant->recent.empty()) variant->recent.front()->instance->drop_frozen();
    variant->recent.clear();
}
std::int64_t CompiledFunction::arena_bytes() const {
    const std::shared_ptr<const Variant> variant = variant_.load();
    return variant->fixed ? variant->fixed->instance->arena_bytes() : 0;
}
std::shared_ptr<const runtime::DirectCalls> CompiledFunction::direct_calls() const {
    const std::shared_ptr<const Variant> variant = variant_.load();
    if (variant->fixed) return variant->fixed->instance->direct();
    std::lock_guard lock(variant->mutex);
    return variant->recent.empty() ? nullptr : variant->recent.front()->instance->direct();
}
std::int64_t CompiledFunction::frozen_bytes() const {
    const std::shared_ptr<const Variant> variant = variant_.load();
    if (variant->fixed) return variant->fixed->instance->frozen_bytes();
    std::lock_guard lock(variant->mutex);
    return variant->recent.empty() ? 0 : variant->recent.front()->instance->frozen_bytes();
}

}  // namespace ingot::trace
