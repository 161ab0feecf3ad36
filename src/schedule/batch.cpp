// See batch.h.
#include "schedule/batch.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace ingot::sched {

namespace {

constexpr std::size_t kFarthest = 256;                    // steps that one moves past
constexpr std::size_t kPointers = 480;                    // that a launch takes as parameters
constexpr std::int64_t kWaiting = std::int64_t{2} << 20;  // bytes that may wait for a later step
constexpr std::int64_t kEarly = std::int64_t{8} << 20;    // that may be made before they are read
/// The same, of one launch: casts of all weights at once would wait through a whole backward.
constexpr std::int64_t kEarlyTogether = std::int64_t{32} << 20;

using Buffers = std::vector<std::int32_t>;

bool intersect(const Buffers& a, const Buffers& b) {
    return std::ranges::any_of(a,
                               [&](std::int32_t x) { return std::ranges::find(b, x) != b.end(); });
}

/// A step in its new place with what it touches, views as what they look into.
struct Placed {
    Step step;
    Buffers reads, writes;
    std::int32_t kernel = -1;  // that may be launched with others
    bool gone = false;

    bool conflicts(const Placed& other) const {
        return intersect(writes, other.writes) || intersect(writes, other.reads) ||
               intersect(reads, other.writes);
    }
};

class Batcher {
  public:
    explicit Batcher(Plan& plan) : plan_(plan) {}

    void run() {
        for (Step& s : plan_.steps) add(placed(std::move(s)));
        plan_.steps.clear();
        for (Placed& p : out_) {
            if (p.gone) continue;
            if (auto* k = std::get_if<KernelStep>(&p.step)) k->kernel = kernel_for(*k);
            plan_.steps.push_back(std::move(p.step));
        }
    }

  private:
    std::int32_t root(std::int32_t buffer) const {
        const std::int32_t base = plan_.buffers[static_cast<std::size_t>(buffer)].base;
        return base >= 0 ? base : buffer;
    }
    const Kernel& kernel(std::int32_t k) const {
        return plan_.kernels[static_cast<std::size_t>(k)];
    }

    static bool is_fixed(const Kernel& k) {
        if (k.contraction || k.nests.size() != 1 || !k.sizes.empty()) return false;
        const auto fixed = [](const Loop& l) { return l.extent.is_constant(); };
        return std::ranges::all_of(k.nests[0].loops, fixed);
    }

    Placed placed(Step step) const {
        Placed p;
        if (const auto* k = std::get_if<KernelStep>(&step)) {
            const Kernel& code = kernel(k->kernel);
            for_each_argument(code, *k, [&](const KernelBuffer& b, std::int32_t buffer) {
                if (b.read) p.reads.push_back(root(buffer));
                if (b.written) p.writes.push_back(root(buffer));
            });
            if (is_fixed(code)) p.kernel = k->kernel;
        } else {
            const auto& call = std::get<ExternStep>(step);
            for (std::int32_t b : call.inputs) p.reads.push_back(root(b));
            for (std::int32_t b : call.outputs) p.writes.push_back(root(b));
        }
        p.step = std::move(step);
        return p;
    }

    void add(Placed p) {
        const auto latest = p.kernel < 0 ? latest_.end() : latest_.find(p.kernel);
        if (latest != latest_.end()) {
            const std::size_t at = latest->second;
            Placed& before = out_[at];
            if (out_.size() - at <= kFarthest && has_room(before, p) && !before.conflicts(p)) {
                if (free_behind(at, p) && may_be_early(before, p)) {
                    join(before, p);
                    return;
                }
                if (free_behind(at, before) && waits_with_little(before)) {
                    Placed moved = std::move(before);
                    before.gone = true;
                    join(moved, p);
                    p = std::move(moved);
                }
            }
        }
        if (p.kernel >= 0) latest_[p.kernel] = out_.size();
        out_.push_back(std::move(p));
    }

    bool free_behind(std::size_t at, const Placed& p) const {
        for (std::size_t i = at + 1; i < out_.size(); ++i)
            if (!out_[i].gone && out_[i].conflicts(p)) return false;
        return true;
    }

    bool has_room(const Placed& before, const Placed& p) const {
        return std::get<KernelStep>(before.step).buffers.size() +
                   std::get<KernelStep>(p.step).buffers.size() <=
               kPointers;
    }

    bool may_be_early(const Placed& before, const Placed& p) const {
        const std::int64_t bytes = bytes_of(p.writes);
        return bytes <= kEarly && bytes_of(before.writes) <= kEarlyTogether - bytes;
    }

    /// What a step reads is kept until it runs; inputs and outputs are anyway.
    bool waits_with_little(const Placed& p) const { return bytes_of(p.reads) <= kWaiting; }

    /// Of those buffers that live only for a while.
    std::int64_t bytes_of(const Buffers& buffers) const {
        std::int64_t bytes = 0;
        for (std::int32_t b : buffers) {
            const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(b)];
            if (buffer.place != BufferPlace::Arena && buffer.place != BufferPlace::Extern) continue;
            if (!buffer.bytes.is_constant()) return std::numeric_limits<std::int64_t>::max();
            bytes += buffer.bytes.constant();
        }
        return bytes;
    }

    static void join(Placed& into, Placed& p) {
        auto& buffers = std::get<KernelStep>(into.step).buffers;
        const auto& more = std::get<KernelStep>(p.step).buffers;
        buffers.insert(buffers.end(), more.begin(), more.end());
        into.reads.insert(into.reads.end(), p.reads.begin(), p.reads.end());
        into.writes.insert(into.writes.end(), p.writes.begin(), p.writes.end());
    }

    /// The kernel for as many instances as the step has memory for.
    std::int32_t kernel_for(const KernelStep& step) {
        const auto arguments = static_cast<std::size_t>(std::ranges::count_if(
            kernel(step.kernel).buffers,
            [](const KernelBuffer& b) { return b.scope == BufferScope::Argument; }));
        const std::size_t instances = arguments == 0 ? 1 : step.buffers.size() / arguments;
        if (instances <= 1) return step.kernel;
        const auto [it, fresh] = batched_.try_emplace(
            {step.kernel, instances}, static_cast<std::int32_t>(plan_.kernels.size()));
        if (fresh) {
            Kernel k = kernel(step.kernel);
            k.instances = static_cast<int>(instances);
            plan_.kernels.push_back(std::move(k));
        }
        return it->second;
    }

    Plan& plan_;
    std::vector<Placed> out_;
    std::map<std::int32_t, std::size_t> latest_;  // by kernel: where its last step is
    std::map<std::pair<std::int32_t, std::size_t>, std::int32_t> batched_;
};

/// Kernels that no step uses any more are not compiled.
void drop_unused(Plan& plan) {
    std::vector<std::int32_t> place(plan.kernels.size(), -1);
    std::vector<Kernel> kept;
    for (std::vector<Step>* steps : {&plan.frozen_steps, &plan.steps})
        for (Step& s : *steps)
            if (auto* k = std::get_if<KernelStep>(&s)) {
                std::int32_t& at = place[static_cast<std::size_t>(k->kernel)];
                if (at < 0) {
                    at = static_cast<std::int32_t>(kept.size());
                    kept.push_back(plan.kernels[static_cast<std::size_t>(k->kernel)]);
                }
                k->kernel = at;
            }
    plan.kernels = std::move(kept);
}

}  // namespace

void batch_launches(Plan& plan) {
    Batcher(plan).run();
    drop_unused(plan);
}

}  // namespace ingot::sched
