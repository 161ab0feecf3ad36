// Making an Instance: every expression of the plan becomes a number, every use of a buffer a
// position in one flat list of argument pointers. See program.h. Costs microseconds a step, once
// per set of sizes.
#include <algorithm>
#include <limits>

#include "passes/call_failures.h"
#include "runtime/program.h"

namespace ingot::runtime {
namespace {

using Symbols = std::function<std::int64_t(Expr)>;

std::int64_t number(Expr e, const Symbols& symbols) {
    return e.is_constant() ? e.constant() : evaluate(e, symbols);
}

std::vector<std::int64_t> numbers(std::span<const Expr> list, const Symbols& symbols) {
    std::vector<std::int64_t> out;
    out.reserve(list.size());
    for (Expr e : list) out.push_back(number(e, symbols));
    return out;
}

Layout layout_of(const Type& type, const Sizes& strides, const Symbols& symbols) {
    Layout l{type.dtype, type.device, numbers(type.sizes, symbols), numbers(strides, symbols), 0};
    check(l.sizes.size() == l.strides.size(), "a buffer's strides do not fit its sizes");
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < l.sizes.size(); ++d) {
        if (l.sizes[d] == 0) return l;
        elements += (l.sizes[d] - 1) * l.strides[d];
    }
    l.bytes = elements * bytes(type.dtype);
    return l;
}

/// Strides of dims of size 1 (and of empty tensors) carry no meaning.
bool same_memory(const Layout& a, const Layout& b) {
    if (a.dtype != b.dtype || a.sizes != b.sizes) return false;
    for (std::size_t d = 0; d < a.sizes.size(); ++d)
        if (a.sizes[d] != 1 && a.strides[d] != b.strides[d] && a.bytes != 0) return false;
    return true;
}

bool checks_indices(const Kernel& kernel) {
    const auto any = [](const std::vector<Inst>& insts) {
        return std::ranges::any_of(
            insts, [](const Inst& i) { return i.kind == InstKind::Bind && i.imm != kBindAny; });
    };
    for (const Nest& nest : kernel.nests)
        for (const Phase& phase : nest.phases)
            if (any(phase.insts)) return true;
    if (!kernel.contraction) return false;
    const Contraction& c = *kernel.contraction;
    return any(c.a_insts) || any(c.b_insts) || any(c.epilogue.insts);
}

bool divides(const Inst& i) {
    const bool division = i.prim == Prim::TruncDiv || i.prim == Prim::FloorDiv ||
                          i.prim == Prim::Fmod || i.prim == Prim::Remainder;
    return i.kind == InstKind::Prim && division && is_integral(i.dtype);
}

// A kernel that divides integers, which says where it divides by zero.
bool divides(const Kernel& kernel) {
    for (const Nest& nest : kernel.nests)
        for (const Phase& phase : nest.phases)
            for (const Inst& i : phase.insts)
                if (divides(i)) return true;
    return kernel.contraction && std::ranges::any_of(kernel.contraction->epilogue.insts,
                                                     [](const Inst& i) { return divides(i); });
}

// Whether the call may raise by its operands' numbers.
bool may_fail(const ExternStep& step) {
    if (step.index >= 0) return !never_fails(step.callee);  // one of the program's own
    if (step.prim == Prim::RandBernoulli || step.prim == Prim::Multinomial) return true;
    const PrimKind k = kind(step.prim);
    return k == PrimKind::Effect || k == PrimKind::Indexing || k == PrimKind::Linalg;
}

/// Where the code strides over the rest.
constexpr std::int64_t kMostBlocks = 1 << 20;

/// A page: threads' shares lie apart, and rows in them as they would in memory of their own.
constexpr std::int64_t kScratchAlignment = 4096;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

Layout layout_of(const Buffer& buffer, const Symbols& symbols) {
    return layout_of(buffer.type, buffer.strides, symbols);
}

Instance::Instance(std::shared_ptr<const Program> program, const ExternHost& externs,
                   const Symbols& symbols)
    : program_(std::move(program)), gpu_(program_->gpu()) {
    const Plan& plan = program_->plan();
    add_buffers(plan, symbols);
    adopt_extern_outputs(plan);
    add_outputs(plan, symbols);
    add_steps(plan, plan.frozen_steps, externs, symbols, frozen_steps_);
    add_steps(plan, plan.steps, externs, symbols, steps_);
    find_frozen(plan);
    find_drops();
    find_memory_events();
    find_pieces();
    if (!gpu_) place_scratch();
    find_spoiled(plan);
    index_uses();
    if (gpu_) prepare_gpu(externs);
}

Instance::~Instance() = default;

void Instance::add_buffers(const Plan& plan, const Symbols& symbols) {
    arena_bytes_ = number(plan.arena_bytes, symbols);
    for (const Buffer& b : plan.buffers) {
        BufferInfo info{b.place, b.index, number(b.offset, symbols), number(b.bytes, symbols),
                        layout_of(b, symbols)};
        if (b.data) info.constant = b.data->data();
        info.base = b.base;
        buffers_.push_back(std::move(info));
    }
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
        const std::int32_t base = buffers_[b].base;
        if (base < 0) continue;
        check(buffers_.at(base).base < 0, "a view of a view");
        buffers_[base].views.push_back(static_cast<std::int32_t>(b));
        buffers_[b].place = buffers_[base].place;
    }
    input_buffers_ = plan.input_buffers;
    for (std::int32_t b : input_buffers_) {
        check(b >= 0, "a graph input has no buffer");
        inputs_.push_back(buffers_[b].layout);
    }
}

void Instance::adopt_extern_outputs(const Plan& plan) {
    // An extern call's result that is a graph output need not be copied into planned memory.
    std::vector<int> writers(buffers_.size(), 0);
    const std::vector<Kernel>& kernels = plan.kernels;
    for (const Step& step : plan.steps) {
        if (const auto* call = std::get_if<ExternStep>(&step))
            for (std::int32_t b : call->outputs) ++writers[b];
        if (const auto* kernel = std::get_if<KernelStep>(&step))
            for_each_argument(kernels[kernel->kernel], *kernel,
                              [&](const KernelBuffer& k, std::int32_t b) {
                                  if (k.written) ++writers[b];
                              });
    }
    for (const Step& step : plan.steps) {
        const auto* call = std::get_if<ExternStep>(&step);
        if (call == nullptr || call->fills) continue;
        for (std::int32_t b : call->outputs)
            if (buffers_[b].place == BufferPlace::Output && buffers_[b].base < 0 &&
                buffers_[b].views.empty() && writers[b] == 1)
                buffers_[b].place = BufferPlace::Extern;
    }
}

void Instance::add_outputs(const Plan& plan, const Symbols& symbols) {
    const auto& wanted = program_->outputs();
    check(wanted.size() == plan.output_buffers.size(), "the plan lacks a graph output");
    std::vector<bool> taken(buffers_.size(), false);
    for (std::size_t o = 0; o < wanted.size(); ++o) {
        OutputSlot slot;
        slot.buffer = plan.output_buffers[o];
        check(slot.buffer >= 0, "a graph output has no buffer");
        slot.layout = layout_of(wanted[o].type, wanted[o].strides, symbols);
        slot.writes_input = wanted[o].writes_input;
        const BufferInfo& b = buffers_[slot.buffer];
        slot.source = b.layout;
        const bool first = !taken[slot.buffer] && b.base < 0;
        const bool fits = same_memory(b.layout, slot.layout);
        taken[slot.buffer] = true;
        slot.mode = OutputMode::Copy;
        if (slot.writes_input >= 0) {
            const bool in_place = b.place == BufferPlace::Input && b.index == slot.writes_input;
            if (in_place) slot.mode = OutputMode::Done;
        } else if (first && fits && b.place == BufferPlace::Extern) {
            slot.mode = OutputMode::Adopt;
        } else if (first && fits && b.place == BufferPlace::Output) {
            slot.mode = OutputMode::Direct;
        }
        outputs_.push_back(std::move(slot));
    }
    // Memory planned as an output that the caller does not provide becomes part of the arena.
    std::vector<bool> direct(buffers_.size(), false);
    for (const OutputSlot& slot : outputs_)
        if (slot.mode == OutputMode::Direct) direct[slot.buffer] = true;
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
        if (buffers_[b].place != BufferPlace::Output || buffers_[b].base >= 0 || direct[b])
            continue;
        buffers_[b].place = BufferPlace::Arena;
        for (std::int32_t v : buffers_[b].views) buffers_[v].place = BufferPlace::Arena;
        buffers_[b].offset = round_up(arena_bytes_, 64);
        arena_bytes_ = buffers_[b].offset + std::max(buffers_[b].bytes, buffers_[b].layout.bytes);
    }
}

void Instance::add_steps(const Plan& plan, const std::vector<Step>& steps,
                         const ExternHost& externs, const Symbols& symbols,
                         std::vector<StepRef>& into) {
    for (const Step& step : steps) {
        if (const auto* kernel = std::get_if<KernelStep>(&step))
            add_kernel(plan, *kernel, symbols, into);
        else
            add_extern(std::get<ExternStep>(step), externs, into);
    }
}

void Instance::add_kernel(const Plan& plan, const KernelStep& step, const Symbols& symbols,
                          std::vector<StepRef>& into) {
    const Kernel& kernel = plan.kernels.at(step.kernel);
    const KernelLaunches& code = program_->kernels().at(step.kernel);
    check(kernel.sizes.size() == step.sizes.size(), "a kernel step lacks sizes");
    const auto arguments = static_cast<std::uint32_t>(argument_buffers_.size());
    argument_buffers_.insert(argument_buffers_.end(), step.buffers.begin(), step.buffers.end());
    const auto sizes = static_cast<std::uint32_t>(sizes_.size());
    const std::vector<std::int64_t> values = numbers(step.sizes, symbols);
    sizes_.insert(sizes_.end(), values.begin(), values.end());
    const Symbols by_kernel = [&](Expr symbol) {
        for (std::size_t i = 0; i < kernel.sizes.size(); ++i)
            if (kernel.sizes[i] == symbol) return values[i];
        return symbols(symbol);
    };
    for (const LaunchCode& launch : code.launches) {
        if (gpu_) {
            LaunchStep l{};
            l.arguments = arguments;
            l.argument_count = static_cast<std::uint32_t>(step.buffers.size());
            l.sizes = sizes;
            l.size_count = static_cast<std::uint32_t>(step.sizes.size());
            l.instances = static_cast<unsigned>(kernel.instances);
            add_gpu_launch(launch, l, by_kernel, into);
            continue;
        }
        LaunchStep l{launch.function,
                     arguments,
                     static_cast<std::uint32_t>(step.buffers.size()),
                     sizes,
                     number(launch.launch.work, by_kernel),
                     std::max<std::int64_t>(1, number(launch.launch.grain, by_kernel)),
                     number(launch.launch.scratch_bytes, by_kernel)};
        if (l.work <= 0) continue;
        l.scratch_bytes = round_up(l.scratch_bytes, kScratchAlignment);
        into.push_back({false, static_cast<std::uint32_t>(launches_.size()), {}, {}, {}});
        launches_.push_back(l);
    }
}

void Instance::add_gpu_launch(const LaunchCode& code, LaunchStep step, const Symbols& by_kernel,
                              std::vector<StepRef>& into) {
    const std::int64_t blocks = number(code.gpu.blocks(), by_kernel);
    const std::int64_t shared = number(code.gpu.shared_bytes, by_kernel);
    if (blocks <= 0) return;
    if (shared > gpu_->shared_bytes()) throw NotSupported("rows too long for shared memory");
    step.gpu_function = code.gpu_function;
    step.overlaps = code.gpu.overlaps;
    if (!code.gpu.strides && blocks > std::numeric_limits<int>::max())
        throw NotSupported("more blocks than a GPU's grid has");
    step.blocks = static_cast<unsigned>(code.gpu.strides ? std::min(blocks, kMostBlocks) : blocks);
    step.threads = code.gpu.threads;
    step.shared = static_cast<unsigned>(shared);
    step.parameters = parameter_count_;
    parameter_count_ += step.argument_count + step.size_count + 4;  // see GpuLaunch
    gpu_scratch_bytes_ = std::max(gpu_scratch_bytes_, number(code.gpu.scratch_bytes, by_kernel));
    into.push_back({false, static_cast<std::uint32_t>(launches_.size()), {}});
    launches_.push_back(step);
}

// What programs on a GPU need beyond the plan: constants there, a word for errors.
void Instance::prepare_gpu(const ExternHost& externs) {
    device_ = externs.device();
    if (device_ == nullptr) throw NotSupported("a GPU's program needs a host that knows GPUs");
    gpu_->make_current();
    gpu_error_ = std::make_unique<cuda::HostWord>(gpu_->api());
    error_parameter_ = gpu_error_->get();
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
        BufferInfo& info = buffers_[b];
        if (info.base >= 0) continue;
        if (info.place == BufferPlace::Arena)
            arena_buffers_.push_back(static_cast<std::int32_t>(b));
        if (info.place != BufferPlace::Constant || info.constant == nullptr) continue;
        const auto bytes = static_cast<std::size_t>(std::max(info.bytes, info.layout.bytes));
        if (bytes == 0) continue;
        constants_.push_back(device_->allocate(bytes));
        gpu_->upload(constants_.back().data(), info.constant, bytes);
        info.constant = constants_.back().data();
    }
}

void Instance::add_extern(const ExternStep& step, const ExternHost& externs,
                          std::vector<StepRef>& into) {
    std::vector<Layout> inputs, outputs;
    for (std::int32_t b : step.inputs) inputs.push_back(buffers_[b].layout);
    for (std::int32_t b : step.outputs) outputs.push_back(buffers_[b].layout);
    ExternStepCall call{externs.prepare(step, inputs, outputs),
                        static_cast<std::uint32_t>(argument_buffers_.size()),
                        static_cast<std::uint32_t>(inputs.size()), 0,
                        static_cast<std::uint32_t>(outputs.size())};
    argument_buffers_.insert(argument_buffers_.end(), step.inputs.begin(), step.inputs.end());
    call.outputs = static_cast<std::uint32_t>(argument_buffers_.size());
    argument_buffers_.insert(argument_buffers_.end(), step.outputs.begin(), step.outputs.end());
    max_extern_outputs_ = std::max(max_extern_outputs_, call.output_count);
    into.push_back({true, static_cast<std::uint32_t>(externs_.size()), {}, {}, {}});
    externs_.push_back(std::move(call));
}

void Instance::find_frozen(const Plan& plan) {
    // Extern results of frozen steps are kept like frozen buffers.
    std::vector<bool> read(buffers_.size(), false);
    const auto visit = [&](const std::vector<std::int32_t>& list) {
        for (std::int32_t b : list) read[root(b)] = true;
    };
    for (const Step& step : plan.frozen_steps) {
        if (const auto* kernel = std::get_if<KernelStep>(&step)) visit(kernel->buffers);
        if (const auto* call = std::get_if<ExternStep>(&step)) {
            visit(call->inputs);
            for (std::int32_t b : call->outputs)
                if (buffers_[b].place == BufferPlace::Extern) frozen_buffers_.push_back(b);
        }
    }
    for (std::size_t i = 0; i < input_buffers_.size(); ++i)
        if (read[input_buffers_[i]]) frozen_inputs_.push_back(static_cast<std::int32_t>(i));
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
        if (buffers_[b].place != BufferPlace::Frozen || buffers_[b].base >= 0) continue;
        frozen_buffers_.push_back(static_cast<std::int32_t>(b));
        frozen_bytes_ += buffers_[b].bytes;
    }
}

void Instance::find_drops() {
    std::vector<bool> keep(buffers_.size(), false);
    for (const OutputSlot& slot : outputs_) keep[root(slot.buffer)] = true;
    for (std::int32_t b : frozen_buffers_) keep[b] = true;
    std::vector<bool> seen(buffers_.size(), false);
    for (std::size_t s = steps_.size(); s-- > 0;) {
        StepRef& step = steps_[s];
        for (std::int32_t used : buffers_of(step)) {
            const std::int32_t b = root(used);
            if (buffers_[b].place != BufferPlace::Extern || keep[b] || seen[b]) continue;
            seen[b] = true;
            step.drops.push_back(b);
        }
    }
}

std::span<const std::int32_t> Instance::buffers_of(const StepRef& step) const {
    std::uint32_t first, last;
    if (step.is_extern) {
        const ExternStepCall& call = externs_[step.index];
        first = call.inputs;
        last = call.outputs + call.output_count;
    } else {
        first = launches_[step.index].arguments;
        last = first + launches_[step.index].argument_count;
    }
    return {argument_buffers_.data() + first, last - first};
}

void Instance::find_memory_events() {
    std::vector<std::int32_t> output(buffers_.size(), -1), input(buffers_.size(), -1);
    for (std::size_t i = 0; i < input_buffers_.size(); ++i)
        input[input_buffers_[i]] = static_cast<std::int32_t>(i);
    for (std::size_t o = 0; o < outputs_.size(); ++o) {
        if (outputs_[o].mode == OutputMode::Direct)
            output[outputs_[o].buffer] = static_cast<std::int32_t>(o);
        // The caller reads them after the run.
        input[root(outputs_[o].buffer)] = -1;
    }
    for (StepRef& step : steps_)
        for (std::int32_t b : buffers_of(step))
            if (const std::int32_t o = std::exchange(output[root(b)], -1); o >= 0)
                step.makes.push_back(o);
    for (std::int32_t o : output)
        if (o >= 0) untouched_outputs_.push_back(o);
    for (std::size_t s = steps_.size(); s-- > 0;)
        for (std::int32_t b : buffers_of(steps_[s]))
            if (const std::int32_t i = std::exchange(input[root(b)], -1); i >= 0)
                steps_[s].releases.push_back(i);
}

void Instance::find_pieces() {
    constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
    std::vector<ArenaUse> uses(buffers_.size());
    for (std::size_t s = 0; s < steps_.size(); ++s)
        for (std::int32_t used : buffers_of(steps_[s])) {
            const std::int32_t b = root(used);
            if (buffers_[b].place != BufferPlace::Arena) continue;
            if (uses[b].buffer < 0) {
                const std::int64_t bytes = std::max(buffers_[b].bytes, buffers_[b].layout.bytes);
                uses[b] = {b, buffers_[b].offset, bytes, s, s};
            }
            uses[b].last = s;
        }
    // The caller copies them after the run.
    for (const OutputSlot& slot : outputs_)
        if (slot.mode == OutputMode::Copy) uses[root(slot.buffer)].last = kNever;
    std::erase_if(uses, [](const ArenaUse& use) { return use.buffer < 0; });
    pieces_ = arena_pieces(std::move(uses));
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
        steps_[pieces_[p].first].opens.push_back(static_cast<std::int32_t>(p));
        if (pieces_[p].last != kNever)
            steps_[pieces_[p].last].closes.push_back(static_cast<std::int32_t>(p));
    }
}

std::int64_t Instance::most_lent(const std::vector<bool>& given, bool results) const {
    constexpr std::int64_t kSmall = 1 << 20, kBlock = 512;
    std::vector<std::int64_t> change(steps_.size() + 1, 0);
    std::vector<bool> result(buffers_.size(), false);
    const auto add = [&](std::int64_t bytes, std::size_t first, std::size_t last) {
        if (bytes < kSmall) return;
        change[first] += round_up(bytes, kBlock);
        if (last < steps_.size()) change[last + 1] -= round_up(bytes, kBlock);
    };
    for (const OutputSlot& slot : outputs_) {
        result[root(slot.buffer)] = slot.mode == OutputMode::Adopt;
        if (results && slot.mode == OutputMode::Copy)
            add(slot.layout.bytes, steps_.size(), steps_.size());
    }
    for (const ArenaPiece& p : pieces_) add(p.bytes, p.first, p.last);
    std::vector<std::size_t> born(buffers_.size(), 0), gone(inputs_.size(), steps_.size());
    for (std::size_t s = steps_.size(); s-- > 0;) {
        if (steps_[s].is_extern)
            for (std::int32_t b : buffers_of(steps_[s])) born[root(b)] = s;
        for (std::int32_t i : steps_[s].releases) gone[i] = s;
        if (results)
            for (std::int32_t o : steps_[s].makes) add(outputs_[o].layout.bytes, s, steps_.size());
    }
    for (std::size_t s = 0; s < steps_.size(); ++s)
        for (std::int32_t b : steps_[s].drops) add(buffers_[b].layout.bytes, born[b], s);
    for (std::size_t b = 0; results && b < buffers_.size(); ++b)
        if (result[b]) add(buffers_[b].layout.bytes, born[b], steps_.size());
    for (std::size_t i = 0; i < std::min(given.size(), inputs_.size()); ++i)
        if (given[i]) add(inputs_[i].bytes, 0, gone[i]);
    std::int64_t now = 0, most = 0;
    for (std::int64_t c : change) most = std::max(most, now += c);
    return most;
}

void Instance::place_scratch() {
    // Frozen steps come first and hand nothing over in the arena.
    std::vector<const StepRef*> steps;
    for (const auto* list : {&frozen_steps_, &steps_})
        for (const StepRef& step : *list) steps.push_back(&step);
    std::vector<std::size_t> first(buffers_.size(), steps.size()), last(buffers_.size(), 0);
    for (std::size_t s = 0; s < steps.size(); ++s)
        for (std::int32_t used : buffers_of(*steps[s])) {
            const std::int32_t b = root(used);
            first[b] = std::min(first[b], s);
            last[b] = s;
        }
    // The caller reads them after the run.
    for (const OutputSlot& slot : outputs_) last[root(slot.buffer)] = steps.size();
    for (std::size_t s = 0; s < steps.size(); ++s) {
        if (steps[s]->is_extern || launches_[steps[s]->index].scratch_bytes == 0) continue;
        std::int64_t end = 0;
        for (std::size_t b = 0; b < buffers_.size(); ++b) {
            const BufferInfo& info = buffers_[b];
            if (info.place != BufferPlace::Arena || info.base >= 0 || first[b] > s || last[b] < s)
                continue;
            end = std::max(end, info.offset + std::max(info.bytes, info.layout.bytes));
        }
        launches_[steps[s]->index].scratch_offset = round_up(end, kScratchAlignment);
        with_scratch_.push_back(steps[s]->index);
    }
}

// Inputs that are written before, or by, the last step that may fail.
void Instance::find_spoiled(const Plan& plan) {
    const auto kernel_of = [&](const KernelStep& step) -> const Kernel& {
        return plan.kernels.at(step.kernel);
    };
    const auto fails = [&](const auto& step) {
        const auto* kernel = std::get_if<KernelStep>(&step);
        if (kernel == nullptr) return may_fail(std::get<ExternStep>(step));
        return checks_indices(kernel_of(*kernel)) || divides(kernel_of(*kernel));
    };
    const auto calls = [](const auto& step) { return std::holds_alternative<ExternStep>(step); };
    const auto written_before_last = [&](const auto& counts) {
        std::size_t end = plan.steps.size();
        while (end > 0 && !counts(plan.steps[end - 1])) --end;
        std::vector<bool> written(buffers_.size(), false), inputs;
        for (std::size_t s = 0; s < end; ++s) {
            if (const auto* step = std::get_if<KernelStep>(&plan.steps[s])) {
                for_each_argument(kernel_of(*step), *step,
                                  [&](const KernelBuffer& k, std::int32_t b) {
                                      if (k.written) written[root(b)] = true;
                                  });
            } else {
                for (std::int32_t b : std::get<ExternStep>(plan.steps[s]).outputs)
                    written[root(b)] = true;
            }
        }
        for (const std::int32_t b : input_buffers_) inputs.push_back(written[root(b)]);
        return inputs;
    };
    may_spoil_ = written_before_last(fails);
    written_early_ = written_before_last(calls);
}

void Instance::index_uses() {
    for (std::int32_t b : argument_buffers_) ++buffers_[b].use_count;
    std::uint32_t next = 0;
    for (BufferInfo& b : buffers_) {
        b.first_use = next;
        next += b.use_count;
        b.use_count = 0;
    }
    uses_.resize(argument_buffers_.size());
    for (std::uint32_t a = 0; a < argument_buffers_.size(); ++a) {
        BufferInfo& b = buffers_[argument_buffers_[a]];
        uses_[b.first_use + b.use_count++] = a;
    }
}

}  // namespace ingot::runtime
