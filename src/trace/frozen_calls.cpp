// What becomes of frozen parameters between calls; part of compiled_function.h.
//
// Folded and packed weights are kept while their parameters stay what they are. Large matmuls' are
// packed later: the packed copies are as big as the model, and to have the system clear that much
// memory takes longer than the rest of a first call. Until then products read the weights as they
// lie. The second call that finds them as they were has the packed form compiled, and memory
// cleared for it, in the background; the first call after that packs and goes over. Nothing but
// calls reads a tensor. A parameter that changes at every call is not kept frozen.
//
// That a parameter is what it was, its version and what was noted beside it say
// (silent_changes.h). On processors fingerprints check it: a part at each call, everything after
// something that may have written unseen. What they find is noted as a write, said, and packed
// again before the call computes anything. On GPUs a graph of the program's own that was replayed,
// and for tensors that need a gradient an optimizer's step or a backward, count as a change.
#include <ATen/Context.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "passes/facts.h"
#include "trace/compiled_call.h"
#include "trace/compiled_function.h"
#include "trace/frozen_checks.h"
#include "trace/silent_changes.h"
#include "trace/watched_operators.h"

namespace ingot::trace {
namespace {

using runtime::InputState;

/// A parameter that changes at every call is not worth keeping frozen after this many.
constexpr int kChangesUntilUnfrozen = 3;
/// Weights of fewer bytes are packed in the first call: to compile twice would cost more.
constexpr std::int64_t kPackLaterBytes = std::int64_t{32} << 20;

InputState state_of(const c10::TensorImpl& t) {
    // An inference tensor has no version, and an alias that lives may be written to unnoticed:
    // count them as new at every call.
    static std::atomic<std::uint64_t> unique{std::uint64_t{1} << 63};
    const auto& version = t.version_counter();
    const std::optional<std::uint64_t> silent = silent_changes(t);
    std::uint64_t event = 0;
    if (t.device_type() == c10::kCUDA)
        event = t.requires_grad() ? possible_writes() : graph_replays();
    return {t.unsafe_storage().unsafeGetStorageImpl(), data_of(t, false),
            version.enabled() && silent
                ? version.current_version() + (*silent << 32 & ~(std::uint64_t{1} << 63))
                : unique.fetch_add(1),
            event};
}

using States = c10::SmallVector<InputState, 16>;

}  // namespace

bool CompiledFunction::should_pack_later() const {
    return device_.is_cpu() && packable_matmul_bytes(graph_) >= kPackLaterBytes;
}

bool CompiledFunction::pack_if_unchanged(std::span<c10::TensorImpl* const> inputs) {
    using State = runtime::PendingProgram::State;
    std::unique_lock lock(mutex_);
    if (!packs_later_.load(std::memory_order_relaxed)) return false;
    if (packing_ && packing_->state() == State::Pending) return false;
    std::vector<InputState> states;
    for (std::size_t g = 0; g < from_caller_.size(); ++g)
        if (graph_.inputs()[g].frozen) states.push_back(state_of(*graph_input(inputs, g)));
    // Different in the first call, and while weights are being trained. (A storage may have the
    // address of one that has been freed: then packing comes early, nothing is wrong.)
    const bool rest = std::exchange(seen_states_, states) == states;
    if (packing_ && packing_->state() == State::Stopped) packing_.reset();
    if (packing_) {
        if (packing_->state() == State::Done && !rest) {
            packing_->program()->drop_reserve();  // as big as the model, and maybe not soon needed
            return false;
        }
        const std::unique_ptr<runtime::PendingProgram> over = std::move(packing_);
        packs_later_.store(false);
        seen_states_.clear();
        if (over->state() != State::Done) return false;
        try {
            variant_.store(variant_of(over->program()));
            return true;
        } catch (const std::exception&) {
            return false;
        }
    }
    if (!rest) return false;
    // Whoever asks for determinism wants to know which call is the first of the other form.
    if (!options_.background || at::globalContext().deterministicAlgorithms())
        return pack_now(std::move(lock));
    packing_ = compiler_->compile_later(graph_, options_for(true));
    return false;
}

bool CompiledFunction::pack_now(std::unique_lock<std::mutex> lock) {
    packs_later_.store(false);
    seen_states_.clear();
    const Graph graph = graph_;
    const std::shared_ptr<const Variant> before = variant_.load();
    lock.unlock();
    // Other threads go on with the form at hand meanwhile.
    try {
        auto packed = compile(graph, true, nullptr, {});
        lock.lock();
        if (variant_.load() != before) return false;
        variant_.store(std::move(packed));
        return true;
    } catch (const std::exception&) {
        // The form at hand goes on giving right results, only slower.
        return false;
    }
}

void CompiledFunction::name_inputs(std::span<const std::string> names) {
    for (std::size_t g = 0; g < from_caller_.size(); ++g)
        if (const std::int32_t i = from_caller_[g]; i >= 0 && !names[i].empty())
            names_[g] = names[i];
}

void CompiledFunction::freeze(CallFrame& frame) {
    const runtime::Instance& instance = *frame.sized->instance;
    const auto list = instance.frozen_inputs();
    const auto input = [&](std::size_t i) -> const c10::TensorImpl& {
        return *graph_input(frame.inputs, list[i]);
    };
    watch_operators();
    using Checks = runtime::WeightChecks;
    const Checks checks = options_.weight_checks;
    // The event before the states: what comes between is looked for at the next call.
    const runtime::FrozenCheck check{checks != Checks::None, checks == Checks::All,
                                     possible_writes()};
    States states;
    const auto read_states = [&] {
        states.clear();
        for (std::size_t i = 0; i < list.size(); ++i) states.push_back(state_of(input(i)));
    };
    const auto pin = [&](std::size_t i) -> std::shared_ptr<const void> {
        using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
        return std::make_shared<Weak>(input(i).unsafe_storage().getWeakStorageImpl());
    };
    read_states();
    bool made = instance.freeze(*frame.context, states, threads_, pin, check);
    if (!made && checks != Checks::None) {
        const std::vector<std::size_t> changed =
            instance.changed_unseen(*frame.context, threads_, check);
        // Another function that has packed the same parameter hears of it, too.
        for (std::size_t i : changed) {
            note_write(input(i).unsafe_storage());
            report_unseen_write(names_[list[i]]);
        }
        if (!changed.empty()) {
            read_states();
            made = instance.freeze(*frame.context, states, threads_, pin, check);
        }
    }
    if (made) {
        freezes_.fetch_add(1, std::memory_order_relaxed);
        note_change(frame, states);
    } else if (changes_in_a_row_.load(std::memory_order_relaxed) != 0) {
        std::lock_guard lock(mutex_);
        changes_in_a_row_.store(0, std::memory_order_relaxed);
        std::ranges::fill(changes_, 0);
    }
}

void CompiledFunction::note_change(const CallFrame& frame, std::span<const InputState> states) {
    std::lock_guard lock(mutex_);
    const auto list = frame.sized->instance->frozen_inputs();
    bool any = false, lost = false;
    for (std::size_t i = 0; i < list.size(); ++i) {
        InputState& last = last_states_[list[i]];
        // Moved to memory that other processes write to, which nobody will notice.
        const bool shared = is_shared_with_processes(*graph_input(frame.inputs, list[i]));
        if (shared || (last.storage != nullptr && last != states[i])) {
            ++changes_[list[i]];
            any = true;
        }
        lost = lost || shared;
        last = states[i];
    }
    if (!any || (changes_in_a_row_.fetch_add(1) + 1 < kChangesUntilUnfrozen && !lost)) return;
    if (variant_.load() == frame.variant) unfreeze();
}

void CompiledFunction::unfreeze() {
    auto& inputs = graph_.mutable_inputs();
    for (std::size_t g = 0; g < inputs.size(); ++g)
        if (changes_[g] > 0) inputs[g].frozen = false;
    std::ranges::fill(changes_, 0);
    changes_in_a_row_.store(0);
    try {
        packs_later_.store(false);
        packing_.reset();
        tuning_.reset();  // of the other graph; begins anew
        variant_.store(compile(graph_, true, nullptr, {}));
    } catch (const Error&) {
        // The frozen form goes on giving right results, only slower.
    }
}

}  // namespace ingot::trace
