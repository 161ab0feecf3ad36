// Running programs: contexts, the loop over steps, frozen values. See program.h.
#include "runtime/program.h"

#include <algorithm>

#include "runtime/direct_calls.h"
#include "runtime/page_heap.h"

namespace ingot::runtime {
namespace {
constexpr std::size_t kPooledContexts = 4;
constexpr void* kNoMemory = nullptr;  // a parameter of kernels
constexpr std::size_t kAlignment = 64;

/// What a frozen value takes in the block of all of them.
std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

// ---- Context ----

Block SharedArena::take(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    Block block = std::move(block_);
    // What is too small is freed first: the two are never there at once.
    if (block.bytes() < bytes) {
        block = Block();
        block = Block(bytes);
    }
    return block;
}

void SharedArena::give_back(Block block) {
    if (block.bytes() > most_kept_) return;
    std::lock_guard lock(mutex_);
    if (block.bytes() >= block_.bytes()) block_ = std::move(block);
}

void SharedArena::clear() {
    std::lock_guard lock(mutex_);
    block_ = Block();
}

Context::Context(const Instance& instance)
    : instance_(instance),
      table_(instance.buffers_.size(), nullptr),
      arguments_(instance.argument_buffers_.size(), nullptr),
      owners_(instance.externs_.empty() ? 0 : instance.buffers_.size()),
      step_owners_(instance.max_extern_outputs_) {
    for (std::size_t b = 0; b < instance.buffers_.size(); ++b) {
        const auto& info = instance.buffers_[b];
        if (info.base >= 0) continue;
        // Kernels only read constants; the calling convention has one kind of pointer.
        if (info.place == BufferPlace::Constant)
            patch(static_cast<std::int32_t>(b), const_cast<void*>(info.constant));
    }
    if (!instance.gpu_) return;
    parameters_.resize(instance.parameter_count_);
    for (const Instance::LaunchStep& l : instance.launches_) {
        void** p = parameters_.data() + l.parameters;
        // Those of several instances are one parameter.
        const std::uint32_t pointers = l.instances > 1 ? 1 : l.argument_count;
        for (std::uint32_t i = 0; i < pointers; ++i) *p++ = &arguments_[l.arguments + i];
        for (std::uint32_t i = 0; i < l.size_count; ++i)
            *p++ = const_cast<std::int64_t*>(&instance.sizes_[l.sizes + i]);
        *p++ = const_cast<void**>(&instance.error_parameter_);
        *p++ = &gpu_scratch_;
        *p++ = const_cast<void**>(&kNoMemory);
        *p = const_cast<void**>(&kNoMemory);
    }
}

void Context::take_arena(const DeviceHost& device) {
    if (instance_.arena_bytes_ == 0 || lent_) return;
    device_arena_ = device.allocate(static_cast<std::size_t>(instance_.arena_bytes_));
    place_device_arena(device_arena_.data());
}

void Context::lend_arena(void* memory) {
    lent_ = true;
    place_device_arena(memory);
}

void Context::place_device_arena(void* memory) {
    auto* base = static_cast<std::byte*>(memory);
    if (base == arena_base_) return;
    arena_base_ = base;
    for (std::int32_t b : instance_.arena_buffers_) patch(b, base + instance_.buffers_[b].offset);
}

void Context::take_scratch(const DeviceHost& device) {
    if (instance_.gpu_scratch_bytes_ == 0) return;
    device_scratch_ = device.allocate(static_cast<std::size_t>(instance_.gpu_scratch_bytes_));
    gpu_scratch_ = device_scratch_.data();
}

void Context::patch(std::int32_t buffer, void* data) {
    table_[buffer] = data;
    const auto& info = instance_.buffers_[buffer];
    const std::uint32_t* use = instance_.uses_.data() + info.first_use;
    for (std::uint32_t i = 0; i < info.use_count; ++i) arguments_[use[i]] = data;
    for (std::int32_t view : info.views)
        patch(view, static_cast<std::byte*>(data) + instance_.buffers_[view].offset);
}

void Context::set_arena(Block arena) {
    arena_ = std::move(arena);
    if (arena_.data() == arena_base_) return;
    arena_base_ = arena_.data();
    for (std::size_t b = 0; b < instance_.buffers_.size(); ++b) {
        const auto& info = instance_.buffers_[b];
        if (info.base < 0 && info.place == BufferPlace::Arena)
            patch(static_cast<std::int32_t>(b), arena_.data() + info.offset);
    }
}

void Context::place_piece(const ArenaPiece& piece, void* memory) {
    for (const auto& [buffer, at] : piece.buffers)
        patch(buffer, static_cast<std::byte*>(memory) + at);
}

/// The arena's values lie where a run with pieces has put them, or in the arena again.
void Context::prepare_memory(bool pieces) {
    if (pieces)
        arena_base_ = nullptr;
    else if (arena_base_ == nullptr && arena_.data() != nullptr)
        set_arena(std::move(arena_));
    if (!instance_.gpu_) return;
    if (!pieces) take_arena(*instance_.device_);
    take_scratch(*instance_.device_);
}

void Context::set_input(std::size_t input, void* data) {
    const std::int32_t buffer = instance_.input_buffers_[input];
    if (table_[buffer] != data) patch(buffer, data);
}

void Context::set_output(std::size_t output, void* data) {
    patch(instance_.outputs_[output].buffer, data);
}

std::shared_ptr<void> Context::take_owner(std::int32_t buffer) {
    return owners_.empty() ? nullptr : std::move(owners_[buffer]);
}

void Context::begin_steps(const Threads& threads) {
    threads_ = threads.count();
    std::int64_t needed = 0;
    for (std::uint32_t l : instance_.with_scratch_) {
        const Instance::LaunchStep& launch = instance_.launches_[l];
        needed = std::max(needed, launch.scratch_offset + threads_ * launch.scratch_bytes);
    }
    if (static_cast<std::size_t>(needed) <= arena_.bytes()) return;
    needed = std::max(needed, instance_.arena_bytes_);
    arena_ = Block();  // the two are never there at once
    set_arena(Block(static_cast<std::size_t>(needed)));
}

// ---- Instance ----

Instance::Lease Instance::lease(SharedArena* arena) const {
    std::unique_ptr<Context> context;
    {
        std::lock_guard lock(mutex_);
        if (!pool_.empty()) {
            context = std::move(pool_.back());
            pool_.pop_back();
        }
    }
    const auto bytes = static_cast<std::size_t>(arena_bytes_);
    if (!context) {
        context.reset(new Context(*this));
        // A GPU's comes from its own allocator at each run.
        if (arena == nullptr && !gpu_) context->set_arena(Block(bytes));
    }
    // Also without values in it: kernels' scratch memory lies there.
    if (arena != nullptr) context->set_arena(arena->take(bytes));
    return {*this, std::move(context), arena};
}

void Instance::give_back(std::unique_ptr<Context> context, SharedArena* arena) const {
    // The pointers into it stay: the same block mostly comes back.
    if (arena != nullptr) arena->give_back(std::move(context->arena_));
    for (auto& owner : context->owners_) owner.reset();
    context->device_arena_ = {};
    context->lent_ = false;
    context->device_scratch_ = {};
    context->device_results_ = {};
    std::lock_guard lock(mutex_);
    if (pool_.size() < kPooledContexts) pool_.push_back(std::move(context));
}

void Instance::run(Context& context, const Threads& threads, RunMemory* memory, bool direct) const {
    context.error_ = kNoError;
    if (gpu_) {
        check_gpu_error();
        gpu_->make_current();
    }
    const bool pieces = memory != nullptr && memory->lends_pieces();
    context.prepare_memory(pieces);
    if (memory != nullptr)
        for (std::int32_t o : untouched_outputs_) context.set_output(o, memory->make_output(o));
    if (gpu_) {
        const auto calls = direct ? direct_calls(context) : nullptr;
        if (calls && memory == nullptr)
            context.take_results(*device_, *calls);
        else
            context.results_base_ = nullptr;
        run_gpu_steps(steps_, context, memory, calls.get());
        if (pieces) context.device_scratch_ = {};
        return;
    }
    context.begin_steps(threads);
    run_steps(steps_, context, threads, memory);
}

// A kernel that met an index out of range has said so some time after its call had returned.
void Instance::check_gpu_error() const {
    if (*static_cast<volatile std::int64_t*>(gpu_error_->get()) != kIndexOutOfRange) return;
    *gpu_error_->get() = kNoError;
    throw Error("CUDA: an index was out of range in an earlier call of this compiled function");
}

void Instance::launch(const LaunchStep& step, Context& context, void* stream) const {
    gpu_->launch(step.gpu_function, step.blocks, step.instances, step.threads, step.shared, stream,
                 context.parameters_.data() + step.parameters, step.overlaps);
}

std::size_t Instance::steps_until_read(std::size_t input) const {
    constexpr std::size_t kFew = 16;
    std::size_t count = 0;
    for (std::size_t s = 0; s < steps_.size(); ++s)
        for (std::int32_t b : buffers_of(steps_[s]))
            if (root(b) == input_buffers_[input]) count = s + 1;
    if (count > kFew) return 0;
    const auto first = std::span(steps_).first(count);
    return std::ranges::any_of(first, &StepRef::is_extern) ? 0 : count;
}

void Instance::run_first(Context& context, std::size_t steps) const {
    gpu_->make_current();
    void* const stream = device_->stream();
    for (const StepRef& step : std::span(steps_).first(steps))
        launch(launches_[step.index], context, stream);
}

void Instance::before_step(const StepRef& step, Context& context, RunMemory& memory) const {
    for (std::int32_t o : step.makes) context.set_output(o, memory.make_output(o));
    if (!memory.lends_pieces()) return;
    for (std::int32_t p : step.opens) {
        const auto bytes = static_cast<std::size_t>(pieces_[p].bytes);
        context.place_piece(pieces_[p], memory.make_piece(p, bytes));
    }
}

void Instance::after_step(const StepRef& step, RunMemory& memory) const {
    for (std::int32_t i : step.releases) memory.release_input(i);
    if (!memory.lends_pieces()) return;
    for (std::int32_t p : step.closes) memory.free_piece(p);
}

void Instance::run_gpu_steps(const std::vector<StepRef>& steps, Context& context, RunMemory* memory,
                             const DirectCalls* direct) const {
    void* const stream = device_->stream();
    std::size_t ahead = memory != nullptr ? memory->first_step() : 0;
    for (const StepRef& step : steps) {
        if (memory != nullptr) before_step(step, context, *memory);
        if (ahead > 0)
            --ahead;
        else if (!step.is_extern)
            launch(launches_[step.index], context, stream);
        else if (direct == nullptr || !run_direct(step.index, context, *direct, stream))
            run_extern(externs_[step.index], context);
        for (std::int32_t b : step.drops) context.owners_[b].reset();
        // The allocator gives memory out again in the order of the stream.
        if (memory != nullptr) after_step(step, *memory);
    }
}

std::vector<std::size_t> Instance::settled() const {
    std::vector<std::size_t> last(buffers_.size(), 0);
    for (std::size_t s = 0; s < steps_.size(); ++s)
        for (std::int32_t b : buffers_of(steps_[s])) last[root(b)] = s + 1;
    for (const OutputSlot& slot : outputs_)
        if (slot.mode == OutputMode::Copy || slot.mode == OutputMode::Done)
            last[root(slot.buffer)] = steps_.size();
    std::vector<std::size_t> out;
    for (const OutputSlot& slot : outputs_) out.push_back(last[root(slot.buffer)]);
    return out;
}

void Instance::run_part(Context& context, const Threads& threads, RunMemory& memory,
                        std::size_t begin, std::size_t end) const {
    if (begin == 0) {
        context.error_ = kNoError;
        context.begin_steps(threads);
        for (std::int32_t o : untouched_outputs_) context.set_output(o, memory.make_output(o));
    }
    run_steps(std::span(steps_).subspan(begin, end - begin), context, threads, &memory);
}

void Instance::run_steps(std::span<const StepRef> steps, Context& context, const Threads& threads,
                         RunMemory* memory) const {
    const int available = context.threads_;
    for (const StepRef& step : steps) {
        if (memory != nullptr) before_step(step, context, *memory);
        if (step.is_extern)
            run_extern(externs_[step.index], context);
        else
            run_launch(launches_[step.index], context, threads, available);
        if (context.error_ != kNoError) [[unlikely]]
            return;
        for (std::int32_t b : step.drops) context.owners_[b].reset();
        if (memory != nullptr) after_step(step, *memory);
    }
}

void Instance::run_launch(const LaunchStep& launch, Context& context, const Threads& threads,
                          int available) const {
    void* const* arguments = context.arguments_.data() + launch.arguments;
    const std::int64_t* sizes = sizes_.data() + launch.sizes;
    const std::int64_t worth = launch.work / launch.grain;
    std::byte* const scratch =
        launch.scratch_bytes == 0 ? nullptr : context.arena_.data() + launch.scratch_offset;
    if (available <= 1 || worth <= 1) {
        launch.function(arguments, sizes, 0, launch.work, scratch, &context.error_);
        return;
    }
    struct Shared {
        const LaunchStep& launch;
        void* const* arguments;
        const std::int64_t* sizes;
        std::byte* scratch;
        std::int64_t stride, tasks;
        std::int64_t* error;
    } shared{launch,
             arguments,
             sizes,
             scratch,
             launch.scratch_bytes,
             std::min<std::int64_t>(available, worth),
             &context.error_};
    const auto body = [](void* pointer, int task) {
        const Shared& s = *static_cast<const Shared*>(pointer);
        const std::int64_t begin = s.launch.work * task / s.tasks;
        const std::int64_t end = s.launch.work * (task + 1) / s.tasks;
        std::byte* own = s.stride == 0 ? nullptr : s.scratch + s.stride * task;
        s.launch.function(s.arguments, s.sizes, begin, end, own, s.error);
    };
    threads.run(static_cast<int>(shared.tasks), body, &shared);
}

void Instance::run_extern(const ExternStepCall& step, Context& context) const {
    const std::span inputs(context.arguments_.data() + step.inputs, step.input_count);
    const std::span outputs(context.arguments_.data() + step.outputs, step.output_count);
    const std::int32_t* buffers = argument_buffers_.data() + step.outputs;
    for (std::uint32_t i = 0; i < step.output_count; ++i)
        if (makes_own_memory(buffers[i])) outputs[i] = nullptr;
    const std::span owners(context.step_owners_.data(), step.output_count);
    step.call->run(inputs, outputs, owners);
    adopt_results(step, context);
}

void Instance::adopt_results(const ExternStepCall& step, Context& context) const {
    const std::int32_t* buffers = argument_buffers_.data() + step.outputs;
    for (std::uint32_t i = 0; i < step.output_count; ++i) {
        std::shared_ptr<void>& owner = context.step_owners_[i];
        if (!owner) continue;
        context.owners_[buffers[i]] = std::move(owner);
        owner.reset();
        void* const data = context.arguments_[step.outputs + i];
        if (context.table_[buffers[i]] != data) context.patch(buffers[i], data);
    }
}

// ---- frozen values ----

void Instance::attach(Context& context, std::shared_ptr<const FrozenState> state) const {
    for (std::size_t i = 0; i < frozen_buffers_.size(); ++i)
        context.patch(frozen_buffers_[i], state->pointers[i]);
    context.frozen_ = std::move(state);
}

std::shared_ptr<FrozenState> Instance::reusable_state(Context& context) const {
    context.frozen_.reset();
    const std::shared_ptr<const FrozenState> old = program_->take_frozen();
    // Nobody else can obtain a reference now; a running call that holds one keeps the old values.
    if (old.use_count() == 1) return std::const_pointer_cast<FrozenState>(old);
    return nullptr;
}

bool Instance::freeze(Context& context, std::span<const InputState> states, const Threads& threads,
                      const std::function<std::shared_ptr<const void>(std::size_t)>& pin,
                      const FrozenCheck& check) const {
    if (frozen_steps_.empty()) return false;
    const auto current = [&](const FrozenState* state) {
        return state != nullptr && std::ranges::equal(state->keys, states);
    };
    if (current(context.frozen_.get())) return false;
    std::lock_guard making(program_->freezing_);
    {
        std::unique_lock lock(program_->frozen_mutex_);
        std::shared_ptr<const FrozenState> published = program_->frozen_;
        lock.unlock();
        if (current(published.get())) {
            attach(context, std::move(published));
            return false;
        }
    }
    std::shared_ptr<FrozenState> state = reusable_state(context);
    if (!state) {
        state = std::make_shared<FrozenState>();
        allocate_frozen(*state);
    }
    // Other streams may still read what is about to be replaced.
    if (gpu_) gpu_->synchronize();
    state->keys.assign(states.begin(), states.end());
    state->pins.clear();
    for (std::size_t i = 0; i < states.size(); ++i) state->pins.push_back(pin(i));
    state->fingerprint.reset();
    state->unchanged_at.store(check.event);
    // Before the values are made: who writes meanwhile is found.
    if (check.fingerprint && !gpu_) {
        std::vector<Layout> layouts;
        for (std::int32_t i : frozen_inputs_) layouts.push_back(inputs_[i]);
        state->fingerprint =
            std::make_unique<const Fingerprint>(layouts, frozen_data(context), threads);
    }
    for (std::size_t i = 0; i < frozen_buffers_.size(); ++i)
        context.patch(frozen_buffers_[i], state->pointers[i]);
    context.error_ = kNoError;
    if (gpu_) {
        context.take_scratch(*device_);
        run_gpu_steps(frozen_steps_, context, nullptr);
        gpu_->synchronize();  // from here on every stream may read it
    } else {
        context.begin_steps(threads);
        run_steps(frozen_steps_, context, threads, nullptr);
    }
    for (std::size_t i = 0; i < frozen_buffers_.size(); ++i) {
        const std::int32_t b = frozen_buffers_[i];
        if (buffers_[b].place != BufferPlace::Extern) continue;
        state->pointers[i] = context.table_[b];
        state->owners[i] = context.take_owner(b);
    }
    if (context.error_ != kNoError) return true;
    context.frozen_ = state;
    std::lock_guard lock(program_->frozen_mutex_);
    program_->frozen_ = std::move(state);
    return true;
}

std::vector<const void*> Instance::frozen_data(const Context& context) const {
    std::vector<const void*> data;
    for (std::int32_t i : frozen_inputs_) data.push_back(context.table_[input_buffers_[i]]);
    return data;
}

std::vector<std::size_t> Instance::changed_unseen(const Context& context, const Threads& threads,
                                                  const FrozenCheck& check) const {
    const FrozenState* state = context.frozen_.get();
    if (state == nullptr || !state->fingerprint) return {};
    using Extent = Fingerprint::Extent;
    const bool all = check.always || state->unchanged_at.load() != check.event;
    if (!all && !state->fingerprint->is_due(threads)) return {};
    std::vector<std::size_t> changed = state->fingerprint->changed(
        frozen_data(context), all ? Extent::All : Extent::Part, threads);
    if (all && changed.empty()) state->unchanged_at.store(check.event);
    return changed;
}

void Instance::allocate_frozen(FrozenState& state) const {
    const auto own_bytes = [&](std::int32_t b) {
        const bool own = buffers_[b].place == BufferPlace::Frozen;
        return own ? static_cast<std::size_t>(buffers_[b].bytes) : 0;
    };
    if (gpu_) {
        for (std::int32_t b : frozen_buffers_) {
            const std::size_t bytes = own_bytes(b);
            state.device_blocks.push_back(bytes == 0 ? DeviceMemory() : device_->allocate(bytes));
            state.pointers.push_back(state.device_blocks.back().data());
        }
    } else {
        // One block: weights of one or two megabytes each would miss the huge pages, and the first
        // call spends more on faults than on packing.
        std::vector<std::size_t> places;
        std::size_t end = 0;
        for (std::int32_t b : frozen_buffers_) {
            places.push_back(end);
            end += aligned(own_bytes(b));
        }
        state.block = program_->take_reserve(end);
        std::byte* const begin = state.block.data();
        for (std::size_t place : places) state.pointers.push_back(begin + place);
    }
    state.owners.resize(frozen_buffers_.size());
}

void Instance::drop_frozen() const {
    if (gpu_) gpu_->synchronize();
    std::lock_guard making(program_->freezing_);
    program_->take_frozen();
}

void Instance::forget_frozen() const {
    std::lock_guard lock(mutex_);
    for (const auto& idle : pool_) idle->frozen_.reset();
}

// ---- Program ----

Program::Program(Plan plan, std::vector<KernelLaunches> kernels, std::vector<ProgramOutput> outputs,
                 std::vector<std::shared_ptr<const void>> code,
                 std::shared_ptr<const cuda::Gpu> gpu)
    : plan_(std::move(plan)),
      kernels_(std::move(kernels)),
      outputs_(std::move(outputs)),
      code_(std::move(code)),
      gpu_(std::move(gpu)) {
    check(kernels_.size() == plan_.kernels.size(), "a kernel has no machine code");
    for (const Buffer& b : plan_.buffers) {
        for (Expr e : b.type.sizes) collect_symbols(e, symbols_);
        for (Expr e : b.strides) collect_symbols(e, symbols_);
        collect_symbols(b.offset, symbols_);
    }
    for (const Step& step : plan_.steps) {
        if (const auto* kernel = std::get_if<KernelStep>(&step)) {
            for (Expr e : kernel->sizes) collect_symbols(e, symbols_);
        } else {
            const Attrs& attrs = std::get<ExternStep>(step).attrs;
            for (const Attr& a : attrs.list()) {
                if (const auto* e = std::get_if<Expr>(&a.value)) collect_symbols(*e, symbols_);
                if (const auto* list = std::get_if<Sizes>(&a.value))
                    for (Expr e : *list) collect_symbols(e, symbols_);
            }
        }
    }
}

void Program::reserve_frozen(const std::function<bool()>& stop) const {
    if (gpu_) return;
    std::size_t bytes = 0;
    for (const Buffer& b : plan_.buffers)
        if (b.place == BufferPlace::Frozen && b.base < 0 && b.bytes.is_constant())
            bytes += aligned(static_cast<std::size_t>(b.bytes.constant()));
    Block block(bytes);
    // A store to each page; a huge page comes whole with its first.
    for (std::size_t at = 0; at < bytes; at += kPage) {
        if (at % kHugePage == 0 && stop && stop()) return;
        *static_cast<volatile std::byte*>(block.data() + at) = std::byte{0};
    }
    std::lock_guard lock(frozen_mutex_);
    reserve_ = std::move(block);
}

void Program::drop_reserve() const { (void)take_reserve(0); }

Block Program::take_reserve(std::size_t bytes) const {
    Block block;
    {
        std::lock_guard lock(frozen_mutex_);
        block = std::move(reserve_);
    }
    return bytes > 0 && block.bytes() == bytes ? std::move(block) : Block(bytes);
}

std::shared_ptr<const FrozenState> Program::take_frozen() const {
    std::vector<std::shared_ptr<const Instance>> alive;
    {
        std::lock_guard lock(mutex_);
        for (const auto& [key, instance] : instances_)
            if (auto strong = instance.lock()) alive.push_back(std::move(strong));
    }
    for (const auto& instance : alive) instance->forget_frozen();
    std::lock_guard lock(frozen_mutex_);
    return std::exchange(frozen_, nullptr);
}

std::shared_ptr<const Instance> Program::instance(const ExternHost& externs,
                                                  std::span<const std::int64_t> values) const {
    check(values.size() == symbols_.size(), "a program needs a value for each of its symbols");
    std::lock_guard lock(mutex_);
    std::erase_if(instances_, [](const auto& entry) { return entry.second.expired(); });
    for (const auto& [key, instance] : instances_)
        if (std::ranges::equal(key, values))
            if (auto alive = instance.lock()) return alive;
    const auto value_of = [&](Expr symbol) {
        for (std::size_t i = 0; i < symbols_.size(); ++i)
            if (symbols_[i] == symbol) return values[i];
        throw InternalError("the plan uses the symbol '" + to_string(symbol) +
                            "' that no input has");
    };
    auto made = std::make_shared<const Instance>(shared_from_this(), externs, value_of);
    instances_.emplace_back(std::vector<std::int64_t>(values.begin(), values.end()), made);
    return made;
}

}  // namespace ingot::runtime
