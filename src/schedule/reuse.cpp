// See reuse.h.
#include "schedule/reuse.h"

#include <algorithm>

namespace ingot::sched {

namespace {

// Every access of one buffer so far is at the offset of the stores, and no load comes later than a
// store.
class Meeting {
  public:
    Meeting(std::int32_t in, std::int32_t out) : in_(in), out_(out) {}

    void phase(const Phase& p) {
        for (const Inst& i : p.insts) {
            if (i.kind != InstKind::Load) continue;
            if (i.buffer == in_ || i.buffer == out_) load(i);
        }
        for (const Store& s : p.stores) {
            if (s.buffer == in_ || s.mode != StoreMode::Write) ok_ = ok_ && s.buffer != in_;
            if (s.buffer != out_) continue;
            at(s.offset);
            stored_ = true;
        }
    }
    void operand(const std::vector<Inst>& insts) {
        for (const Inst& i : insts)
            if (i.kind == InstKind::Load && (i.buffer == in_ || i.buffer == out_)) ok_ = false;
    }
    bool ok() const { return ok_ && stored_; }

  private:
    void load(const Inst& i) {
        if (stored_ && i.buffer == in_) ok_ = false;
        at(i.offset);
    }
    void at(Expr offset) {
        if (!known_) offset_ = offset;
        known_ = true;
        ok_ = ok_ && offset_ == offset;
    }

    std::int32_t in_, out_;
    Expr offset_;
    bool known_ = false;
    bool stored_ = false;
    bool ok_ = true;
};

// The steps that touch a buffer or a view of it, in order.
struct StepUses {
    std::vector<std::size_t> reads, writes;
};

std::vector<StepUses> uses_of(const Plan& plan) {
    std::vector<StepUses> uses(plan.buffers.size());
    auto add = [&](std::int32_t buffer, std::size_t step, bool reads, bool writes) {
        std::int32_t base = plan.buffers[static_cast<std::size_t>(buffer)].base;
        StepUses& u = uses[static_cast<std::size_t>(base >= 0 ? base : buffer)];
        if (reads) u.reads.push_back(step);
        if (writes) u.writes.push_back(step);
    };
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
        if (auto* k = std::get_if<KernelStep>(&plan.steps[s])) {
            const Kernel& kernel = plan.kernels[static_cast<std::size_t>(k->kernel)];
            for (std::size_t i = 0; i < k->buffers.size(); ++i)
                add(k->buffers[i], s, kernel.buffers[i].read, kernel.buffers[i].written);
            continue;
        }
        const auto& e = std::get<ExternStep>(plan.steps[s]);
        for (std::int32_t b : e.inputs) add(b, s, true, false);
        for (std::int32_t b : e.outputs) add(b, s, false, true);
    }
    return uses;
}

std::int32_t argument(const KernelStep& k, std::int32_t buffer) {
    auto it = std::find(k.buffers.begin(), k.buffers.end(), buffer);
    return it == k.buffers.end() ? -1 : static_cast<std::int32_t>(it - k.buffers.begin());
}

// If the step only moves all of one buffer into another, at equal offsets: that one, else -1.
std::int32_t copied(const Plan& plan, const KernelStep& k, std::int32_t to) {
    std::int32_t at = argument(k, to);
    if (k.buffers.size() != 2 || at < 0) return -1;
    const Kernel& kernel = plan.kernels[static_cast<std::size_t>(k.kernel)];
    if (kernel.nests.size() != 1 || kernel.nests[0].phases.size() != 1) return -1;
    const Phase& p = kernel.nests[0].phases[0];
    if (p.insts.size() != 1 || p.insts[0].kind != InstKind::Load || p.stores.size() != 1 ||
        !p.loops.empty() || !(p.insts[0].offset == p.stores[0].offset) || p.stores[0].buffer != at)
        return -1;
    return k.buffers[at == 0 ? 1 : 0];
}

// Whether the only step that makes `from` may make it in input `to`.
bool can_redirect(const Plan& plan, const StepUses& made, const StepUses& input, std::int32_t from,
                  std::int32_t to) {
    const Buffer &a = plan.buffers[static_cast<std::size_t>(from)],
                 &b = plan.buffers[static_cast<std::size_t>(to)];
    if (a.place != BufferPlace::Arena || a.base >= 0 || a.strides != b.strides ||
        !(a.type == b.type) || made.writes.size() != 1 || input.writes.size() != 1)
        return false;
    std::size_t maker = made.writes[0];
    auto* k = std::get_if<KernelStep>(&plan.steps[maker]);
    if (k == nullptr || (!input.reads.empty() && input.reads.back() > maker)) return false;
    // Through a view it may read elements that it has written.
    if (std::any_of(k->buffers.begin(), k->buffers.end(), [&](std::int32_t used) {
            return plan.buffers[static_cast<std::size_t>(used)].base == to;
        }))
        return false;
    std::int32_t in = argument(*k, to), out = argument(*k, from);
    return in < 0 || may_share(plan.kernels[static_cast<std::size_t>(k->kernel)], in, out);
}

void rename(Step& step, std::int32_t from, std::int32_t to) {
    if (auto* k = std::get_if<KernelStep>(&step)) {
        std::replace(k->buffers.begin(), k->buffers.end(), from, to);
    } else {
        auto& e = std::get<ExternStep>(step);
        std::replace(e.inputs.begin(), e.inputs.end(), from, to);
    }
}

}  // namespace

bool may_share(const Kernel& kernel, std::int32_t in, std::int32_t out) {
    const KernelBuffer &a = kernel.buffers[static_cast<std::size_t>(in)],
                       &b = kernel.buffers[static_cast<std::size_t>(out)];
    if (in == out || a.written || bytes(a.dtype) != bytes(b.dtype)) return false;
    Meeting m(in, out);
    if (kernel.contraction) {
        m.operand(kernel.contraction->a_insts);
        m.operand(kernel.contraction->b_insts);
        m.phase(kernel.contraction->epilogue);
        return m.ok();
    }
    // A later nest starts when an earlier one has finished all its points.
    if (kernel.nests.size() != 1) return false;
    for (const Phase& p : kernel.nests[0].phases) m.phase(p);
    return m.ok();
}

void write_inputs_directly(Plan& plan) {
    std::vector<StepUses> uses = uses_of(plan);
    std::vector<bool> viewed(plan.buffers.size(), false), gone(plan.steps.size(), false);
    for (const Buffer& b : plan.buffers)
        if (b.base >= 0) viewed[static_cast<std::size_t>(b.base)] = true;
    for (std::int32_t to : plan.input_buffers) {
        auto t = static_cast<std::size_t>(to);
        if (uses[t].writes.empty()) continue;
        std::size_t copy = uses[t].writes[0];
        auto* k = std::get_if<KernelStep>(&plan.steps[copy]);
        std::int32_t from = k == nullptr ? -1 : copied(plan, *k, to);
        if (from < 0 || viewed[static_cast<std::size_t>(from)]) continue;
        StepUses& made = uses[static_cast<std::size_t>(from)];
        if (!can_redirect(plan, made, uses[t], from, to)) continue;
        gone[copy] = true;
        for (std::size_t s : made.reads) rename(plan.steps[s], from, to);
        rename(plan.steps[made.writes[0]], from, to);
    }
    std::vector<Step> kept;
    for (std::size_t s = 0; s < plan.steps.size(); ++s)
        if (!gone[s]) kept.push_back(std::move(plan.steps[s]));
    plan.steps = std::move(kept);
}

std::vector<std::pair<std::int32_t, std::int32_t>> shareable(const Plan& plan,
                                                             const KernelStep& step) {
    const Kernel& kernel = plan.kernels[static_cast<std::size_t>(step.kernel)];
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    if (kernel.instances > 1) return pairs;
    auto count = static_cast<std::int32_t>(step.buffers.size());
    auto at = [&](std::int32_t i) { return step.buffers[static_cast<std::size_t>(i)]; };
    for (std::int32_t in = 0; in < count; ++in)
        for (std::int32_t out = 0; out < count; ++out) {
            const Buffer &a = plan.buffers[static_cast<std::size_t>(at(in))],
                         &b = plan.buffers[static_cast<std::size_t>(at(out))];
            if (in == out || a.place != BufferPlace::Arena || b.place != BufferPlace::Arena)
                continue;
            if (!kernel.buffers[static_cast<std::size_t>(out)].written) continue;
            if (a.bytes == b.bytes && may_share(kernel, in, out))
                pairs.emplace_back(at(in), at(out));
        }
    return pairs;
}

}  // namespace ingot::sched
