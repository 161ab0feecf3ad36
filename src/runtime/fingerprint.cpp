// See fingerprint.h.
#include "runtime/fingerprint.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ingot::runtime {
namespace {

/// A chunk is so small that a short call can compare one now and then, and a large model has a few
/// thousand of them.
constexpr std::int64_t kLeastChunk = 4 << 10, kMostChunks = 4096;
constexpr int kLanes = 8;
constexpr std::uint64_t kPrime = 0x9E3779B97F4A7C15;

/// Each step is a bijection of the state and of the word, so one word that differs always shows;
/// the rotation brings high bits back to low ones, else two signs that flip could cancel.
std::uint64_t step(std::uint64_t state, std::uint64_t word) {
    return std::rotl((state ^ word) * kPrime, 29);
}

std::uint64_t word_at(const std::byte* p, std::size_t bytes = 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, bytes);
    return word;
}

/// Lanes that do not wait for each other: a multiplication a cycle.
std::uint64_t hash_bytes(std::uint64_t seed, const std::byte* p, std::int64_t bytes) {
    if (bytes >= 8 * kLanes) {
        std::uint64_t lanes[kLanes];
        for (int l = 0; l < kLanes; ++l) lanes[l] = seed + static_cast<std::uint64_t>(l) * kPrime;
        for (; bytes >= 8 * kLanes; p += 8 * kLanes, bytes -= 8 * kLanes)
            for (int l = 0; l < kLanes; ++l) lanes[l] = step(lanes[l], word_at(p + 8 * l));
        for (std::uint64_t lane : lanes) seed = step(seed, lane);
    }
    for (; bytes >= 8; p += 8, bytes -= 8) seed = step(seed, word_at(p));
    if (bytes > 0) seed = step(seed, word_at(p, static_cast<std::size_t>(bytes)));
    return seed;
}

}  // namespace

Fingerprint::Rows Fingerprint::rows_of(const Layout& layout) {
    const std::int64_t item = ingot::bytes(layout.dtype);
    Rows rows{item, 1, {}, {}};
    std::vector<std::size_t> order;
    for (std::size_t d = 0; d < layout.sizes.size(); ++d) {
        if (layout.sizes[d] == 0) return {0, 0, {}, {}};
        // A dim of stride 0 shows the same elements again.
        if (layout.sizes[d] > 1 && layout.strides[d] != 0) order.push_back(d);
    }
    std::ranges::sort(
        order, [&](std::size_t a, std::size_t b) { return layout.strides[a] < layout.strides[b]; });
    for (std::size_t d : order) {
        const std::int64_t stride = layout.strides[d] * item;
        if (rows.sizes.empty() && stride == rows.bytes) {
            rows.bytes *= layout.sizes[d];
            continue;
        }
        rows.sizes.insert(rows.sizes.begin(), layout.sizes[d]);
        rows.strides.insert(rows.strides.begin(), stride);
        rows.count *= layout.sizes[d];
    }
    return rows;
}

Fingerprint::Fingerprint(std::span<const Layout> layouts, std::span<const void* const> data,
                         const Threads& threads) {
    for (const Layout& l : layouts) {
        inputs_.push_back(rows_of(l));
        total_ += inputs_.back().bytes * inputs_.back().count;
    }
    const std::int64_t most = std::max(kLeastChunk, total_ / kMostChunks);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const Rows& rows = inputs_[i];
        const bool one = rows.count == 1;
        const std::int64_t end = one ? rows.bytes : rows.count;
        const std::int64_t length = one ? most : std::max<std::int64_t>(1, most / rows.bytes);
        for (std::int64_t at = 0; rows.bytes > 0 && at < end; at += length)
            chunks_.push_back({static_cast<std::uint32_t>(i), at, std::min(end, at + length)});
    }
    for (const Chunk& c : chunks_) longest_ = std::max(longest_, bytes(c));
    owed_.store(longest_);  // so that the number of calls for all is never more than is promised
    hashes_.resize(chunks_.size());
    visit_all(threads,
              [&](std::size_t c) { hashes_[c] = hash(chunks_[c], data[chunks_[c].input]); });
}

std::int64_t Fingerprint::bytes(const Chunk& chunk) const {
    const Rows& rows = inputs_[chunk.input];
    return (chunk.end - chunk.begin) * (rows.count == 1 ? 1 : rows.bytes);
}

std::uint64_t Fingerprint::hash(const Chunk& chunk, const void* data) const {
    const Rows& rows = inputs_[chunk.input];
    const auto* const base = static_cast<const std::byte*>(data);
    if (rows.count == 1) return hash_bytes(kPrime, base + chunk.begin, chunk.end - chunk.begin);
    std::uint64_t state = kPrime;
    for (std::int64_t row = chunk.begin; row < chunk.end; ++row) {
        std::int64_t rest = row, offset = 0;
        for (std::size_t d = rows.sizes.size(); d-- > 0; rest /= rows.sizes[d])
            offset += rest % rows.sizes[d] * rows.strides[d];
        state = hash_bytes(state, base + offset, rows.bytes);
    }
    return state;
}

template <class Visit>
void Fingerprint::visit_all(const Threads& threads, const Visit& visit) const {
    /// Fewer bytes a thread are not worth waking it.
    constexpr std::int64_t kWorthAThread = 128 << 10;
    const auto tasks =
        static_cast<int>(std::clamp<std::int64_t>(total_ / kWorthAThread, 1, threads.count()));
    struct Work {
        const Visit& visit;
        std::size_t count;
        int tasks;
    } work{visit, chunks_.size(), tasks};
    threads.run(
        tasks,
        [](void* context, int task) {
            const Work& w = *static_cast<const Work*>(context);
            const auto begin = w.count * static_cast<std::size_t>(task) / w.tasks;
            const auto end = w.count * (static_cast<std::size_t>(task) + 1) / w.tasks;
            for (std::size_t c = begin; c < end; ++c) w.visit(c);
        },
        &work);
}

bool Fingerprint::is_due(const Threads& threads) const {
    if (chunks_.empty()) return false;
    const std::int64_t calls = kCallsOnOneThread * std::max(threads.count(), 1);
    const std::int64_t share = (total_ + calls - 1) / calls;
    return owed_.fetch_add(share, std::memory_order_relaxed) + share >= longest_;
}

std::vector<std::size_t> Fingerprint::changed_part(std::span<const void* const> data) const {
    std::vector<std::size_t> found;
    while (owed_.load(std::memory_order_relaxed) >= longest_) {
        const std::size_t c = position_.fetch_add(1, std::memory_order_relaxed) % chunks_.size();
        owed_.fetch_sub(bytes(chunks_[c]), std::memory_order_relaxed);
        if (hash(chunks_[c], data[chunks_[c].input]) != hashes_[c])
            found.push_back(chunks_[c].input);
    }
    return found;
}

std::vector<std::size_t> Fingerprint::changed(std::span<const void* const> data, Extent extent,
                                              const Threads& threads) const {
    if (chunks_.empty()) return {};
    std::vector<std::size_t> found;
    if (extent == Extent::Part) {
        found = changed_part(data);
    } else {
        std::vector<std::atomic<bool>> differs(inputs_.size());
        visit_all(threads, [&](std::size_t c) {
            if (hash(chunks_[c], data[chunks_[c].input]) != hashes_[c])
                differs[chunks_[c].input].store(true, std::memory_order_relaxed);
        });
        for (std::size_t i = 0; i < differs.size(); ++i)
            if (differs[i].load()) found.push_back(i);
    }
    std::ranges::sort(found);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
}

}  // namespace ingot::runtime
