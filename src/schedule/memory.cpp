// See memory.h.
#include "schedule/memory.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "schedule/reuse.h"

namespace ingot::sched {

namespace {

constexpr std::int64_t kAlign = 64;

struct Lifetime {
    std::int32_t buffer;
    std::size_t first, last;
    Expr bytes;  // rounded up
};

void touch(std::vector<std::pair<std::size_t, std::size_t>>& spans, const Plan& plan,
           std::int32_t buffer, std::size_t step) {
    const Buffer& b = plan.buffers[static_cast<std::size_t>(buffer)];
    std::int32_t owner = b.base >= 0 ? b.base : buffer;
    auto& span = spans[static_cast<std::size_t>(owner)];
    span.first = std::min(span.first, step);
    span.second = std::max(span.second, step);
}

using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

// Results take over operands that die in the step that makes them: owner[result] = operand's owner.
void take_over(const Plan& plan, Spans& spans, std::vector<std::int32_t>& owner) {
    std::vector<bool> taken(plan.buffers.size(), false);
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        auto* k = std::get_if<KernelStep>(&plan.steps[i]);
        if (k == nullptr) continue;
        const std::size_t now = plan.frozen_steps.size() + i;
        for (auto [in, out] : shareable(plan, *k)) {
            auto a = static_cast<std::size_t>(in), b = static_cast<std::size_t>(out);
            auto o = static_cast<std::size_t>(owner[a]);
            if (taken[a] || owner[b] != out || spans[b].first != now || spans[a].second != now)
                continue;
            if (std::count(k->buffers.begin(), k->buffers.end(), in) > 1) continue;
            taken[a] = true;
            owner[b] = owner[a];
            spans[o].second = std::max(spans[o].second, spans[b].second);
        }
    }
}

std::vector<Lifetime> lifetimes(const Plan& plan, std::vector<std::int32_t>& owner) {
    Spans spans(plan.buffers.size(), {SIZE_MAX, 0});
    auto walk = [&](const std::vector<Step>& steps, std::size_t base) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            if (auto* k = std::get_if<KernelStep>(&steps[i])) {
                for (std::int32_t b : k->buffers) touch(spans, plan, b, base + i);
            } else {
                const auto& e = std::get<ExternStep>(steps[i]);
                for (std::int32_t b : e.inputs) touch(spans, plan, b, base + i);
                for (std::int32_t b : e.outputs) touch(spans, plan, b, base + i);
            }
        }
    };
    walk(plan.frozen_steps, 0);
    walk(plan.steps, plan.frozen_steps.size());
    take_over(plan, spans, owner);
    std::vector<Lifetime> found;
    for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
        const Buffer& buffer = plan.buffers[b];
        if (buffer.place != BufferPlace::Arena || buffer.base >= 0 || spans[b].first == SIZE_MAX)
            continue;
        if (owner[b] != static_cast<std::int32_t>(b)) continue;
        Expr rounded = ceil_div(buffer.bytes, kAlign) * Expr(kAlign);
        found.push_back({static_cast<std::int32_t>(b), spans[b].first, spans[b].second, rounded});
    }
    return found;
}

bool alive_together(const Lifetime& a, const Lifetime& b) {
    return a.first <= b.last && b.first <= a.last;
}

// Constant sizes first, large ones first; symbolic ones behind.
void sort_by_size(std::vector<Lifetime>& list) {
    std::stable_sort(list.begin(), list.end(), [](const Lifetime& a, const Lifetime& b) {
        if (a.bytes.is_constant() != b.bytes.is_constant()) return a.bytes.is_constant();
        if (a.bytes.is_constant()) return a.bytes.constant() > b.bytes.constant();
        return known_lt(b.bytes, a.bytes) == true && known_lt(a.bytes, b.bytes) != true;
    });
}

struct Placed {
    const Lifetime* life;
    std::int64_t offset;
};

// Steps are cut into blocks; each knows what is alive in it, so that a buffer meets only those.
std::int64_t place_constant(Plan& plan, const std::vector<Lifetime>& list, std::size_t steps) {
    constexpr std::size_t kBlock = 8;
    std::vector<std::vector<Placed>> blocks(steps / kBlock + 1);
    std::int64_t total = 0;
    std::vector<Placed> near;
    for (const Lifetime& life : list) {
        if (!life.bytes.is_constant()) continue;
        near.clear();
        const std::size_t begin = life.first / kBlock;
        for (std::size_t b = begin; b <= life.last / kBlock; ++b)
            for (const Placed& p : blocks[b])  // one that lives long is in many blocks
                if (b == std::max(begin, p.life->first / kBlock) && alive_together(*p.life, life))
                    near.push_back(p);
        std::sort(near.begin(), near.end(),
                  [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
        std::int64_t offset = 0;
        for (const Placed& p : near) {
            if (p.offset >= offset + life.bytes.constant()) break;
            offset = std::max(offset, p.offset + p.life->bytes.constant());
        }
        plan.buffers[static_cast<std::size_t>(life.buffer)].offset = offset;
        total = std::max(total, offset + life.bytes.constant());
        for (std::size_t b = life.first / kBlock; b <= life.last / kBlock; ++b)
            blocks[b].push_back({&life, offset});
    }
    return total;
}

// Very many buffers, as a loop over thousands of rows leaves them: in the order of their first use,
// each into the first gap that is large enough. To look at all that is alive beside each, as above,
// would take the square of their number.
std::int64_t place_in_turn(Plan& plan, std::vector<Lifetime> list) {
    std::erase_if(list, [](const Lifetime& life) { return !life.bytes.is_constant(); });
    std::stable_sort(list.begin(), list.end(),
                     [](const Lifetime& a, const Lifetime& b) { return a.first < b.first; });
    std::map<std::int64_t, std::int64_t> gaps;           // bytes by offset; none touch
    std::multimap<std::size_t, const Lifetime*> living;  // by their last use
    std::int64_t total = 0;
    const auto give_back = [&](std::int64_t offset, std::int64_t bytes) {
        if (bytes == 0) return;
        auto next = gaps.lower_bound(offset);
        if (next != gaps.end() && offset + bytes == next->first) {
            bytes += next->second;
            next = gaps.erase(next);
        }
        if (next != gaps.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == offset) {
                before->second += bytes;
                return;
            }
        }
        gaps.emplace(offset, bytes);
    };
    for (const Lifetime& life : list) {
        while (!living.empty() && living.begin()->first < life.first) {
            const Lifetime& gone = *living.begin()->second;
            give_back(plan.buffers[static_cast<std::size_t>(gone.buffer)].offset.constant(),
                      gone.bytes.constant());
            living.erase(living.begin());
        }
        const std::int64_t bytes = life.bytes.constant();
        std::int64_t offset = total;
        const auto gap =
            std::ranges::find_if(gaps, [&](const auto& g) { return g.second >= bytes; });
        if (gap == gaps.end()) {
            total += bytes;
        } else {
            offset = gap->first;
            const std::int64_t rest = gap->second - bytes;
            gaps.erase(gap);
            if (rest > 0) gaps.emplace(offset + bytes, rest);
        }
        plan.buffers[static_cast<std::size_t>(life.buffer)].offset = offset;
        living.emplace(life.last, &life);
    }
    return total;
}

// Symbolic sizes: a slot is taken over by a later buffer of equal size, else a new one is opened.
Expr place_symbolic(Plan& plan, std::vector<Lifetime> list, Expr end) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Lifetime& a, const Lifetime& b) { return a.first < b.first; });
    struct Slot {
        Expr offset, bytes;
        std::size_t busy_until;
    };
    std::vector<Slot> slots;
    for (const Lifetime& life : list) {
        if (life.bytes.is_constant()) continue;
        auto slot = std::find_if(slots.begin(), slots.end(), [&](const Slot& s) {
            return s.busy_until < life.first && s.bytes == life.bytes;
        });
        if (slot == slots.end()) {
            slots.push_back({end, life.bytes, 0});
            end += life.bytes;
            slot = slots.end() - 1;
        }
        slot->busy_until = life.last;
        plan.buffers[static_cast<std::size_t>(life.buffer)].offset = slot->offset;
    }
    return end;
}

}  // namespace

void plan_memory(Plan& plan) {
    std::vector<std::int32_t> owner(plan.buffers.size());
    std::iota(owner.begin(), owner.end(), 0);
    std::vector<Lifetime> list = lifetimes(plan, owner);
    sort_by_size(list);
    constexpr std::size_t kVeryMany = 2048;
    const std::int64_t constant =
        list.size() > kVeryMany
            ? place_in_turn(plan, list)
            : place_constant(plan, list, plan.frozen_steps.size() + plan.steps.size());
    plan.arena_bytes = place_symbolic(plan, std::move(list), constant);
    for (std::size_t b = 0; b < plan.buffers.size(); ++b)
        if (owner[b] != static_cast<std::int32_t>(b))
            plan.buffers[b].offset = plan.buffers[static_cast<std::size_t>(owner[b])].offset;
}

}  // namespace ingot::sched
