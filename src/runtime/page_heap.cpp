// See page_heap.h.
#include "runtime/page_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

namespace ingot::runtime {
namespace {

/// Addresses are asked for in steps of this where the system has them to give.
constexpr std::size_t kRegion = std::size_t{512} << 20;

void* address(std::uintptr_t at) { return reinterpret_cast<void*>(at); }

}  // namespace

std::uintptr_t map_pages(std::size_t bytes, Reserve reserve) {
    bytes = whole_pages(bytes);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserve == Reserve::No ? MAP_NORESERVE : 0);
    void* all = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (all == MAP_FAILED) return 0;
    const auto first = reinterpret_cast<std::uintptr_t>(all);
    const std::uintptr_t begin = (first + kHugePage - 1) / kHugePage * kHugePage;
    if (begin != first) (void)munmap(all, begin - first);
    const std::uintptr_t end = begin + bytes, last = first + bytes + kHugePage;
    if (end != last) (void)munmap(address(end), last - end);
    // Advice only: without huge pages everything works, with more misses of the TLB.
    (void)madvise(address(begin), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    return begin;
}

PageHeap::~PageHeap() {
    for (const auto& [begin, end] : regions_) (void)munmap(address(begin), end - begin);
}

std::size_t PageHeap::backed_in(std::uintptr_t begin, std::uintptr_t end) const {
    std::size_t sum = 0;
    auto it = free_.upper_bound(begin);
    if (it != free_.begin()) --it;
    for (; it != free_.end() && it->first < end; ++it)
        if (it->second.backed && it->second.end > begin)
            sum += std::min(end, it->second.end) - std::max(begin, it->first);
    return sum;
}

/// The best place is a range with pages of just this size, else where most pages are, the lowest of
/// several. Places begin or end where a range does.
bool PageHeap::find(std::size_t bytes, Window& best) const {
    bool found = false;
    for (auto run = free_.begin(); run != free_.end();) {
        auto after = std::next(run);
        std::uintptr_t end = run->second.end;
        for (; after != free_.end() && after->first == end; ++after) end = after->second.end;
        if (end - run->first >= bytes) {
            const auto consider = [&](std::uintptr_t at) {
                if (at < run->first || at + bytes > end) return;
                const std::size_t backed = backed_in(at, at + bytes);
                if (found && backed <= best.backed) return;
                found = true;
                best = {at, backed};
            };
            for (auto it = run; it != after; ++it) {
                if (it->second.backed && it->second.end - it->first == bytes) {
                    best = {it->first, bytes};
                    return true;
                }
                consider(it->first);
                consider(it->second.end - std::min<std::uintptr_t>(bytes, it->second.end));
            }
        }
        run = after;
    }
    return found;
}

/// No range goes across `at` any more.
void PageHeap::cut(std::uintptr_t at) {
    auto it = free_.upper_bound(at);
    if (it == free_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    free_.emplace(at, it->second);
    it->second.end = at;
}

void PageHeap::insert(std::uintptr_t begin, Free range) {
    auto it = free_.emplace(begin, range).first;
    const auto joins = [&](const Ranges::iterator& left, const Ranges::iterator& right) {
        // A region may follow another by chance, but goes on its own.
        return left->second.end == right->first && left->second.backed == right->second.backed &&
               !regions_.contains(right->first);
    };
    if (const auto next = std::next(it); next != free_.end() && joins(it, next)) {
        it->second.end = next->second.end;
        it->second.age = std::max(it->second.age, next->second.age);
        free_.erase(next);
    }
    if (it == free_.begin()) return;
    if (const auto before = std::prev(it); joins(before, it)) {
        before->second.end = it->second.end;
        before->second.age = std::max(before->second.age, it->second.age);
        free_.erase(it);
    }
}

void PageHeap::grow(std::size_t bytes) {
    std::size_t wanted = std::max(kRegion, bytes);
    std::uintptr_t begin = map_pages(wanted, Reserve::No);
    if (begin == 0) begin = map_pages(wanted = bytes, Reserve::No);
    if (begin == 0) throw std::bad_alloc();
    regions_.emplace(begin, begin + wanted);
    insert(begin, {begin + wanted, false, 0});
}

void* PageHeap::take(std::size_t bytes, std::size_t& fresh) {
    bytes = whole_pages(std::max<std::size_t>(bytes, 1));
    Window at;
    if (!find(bytes, at)) {
        grow(bytes);
        (void)find(bytes, at);
    }
    cut(at.at);
    cut(at.at + bytes);
    for (auto it = free_.lower_bound(at.at); it != free_.end() && it->first < at.at + bytes;)
        it = free_.erase(it);
    unused_ -= at.backed;
    fresh = bytes - at.backed;
    return address(at.at);
}

void PageHeap::give_back(void* data, std::size_t bytes) {
    bytes = whole_pages(std::max<std::size_t>(bytes, 1));
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    insert(begin, {begin + bytes, true, ++clock_});
    unused_ += bytes;
}

void PageHeap::trim(std::size_t keep_bytes) {
    std::vector<std::pair<std::uint64_t, std::uintptr_t>> by_age;
    if (unused_ > keep_bytes)
        for (const auto& [begin, range] : free_)
            if (range.backed) by_age.emplace_back(range.age, begin);
    std::ranges::sort(by_age);
    // What loses its pages grows together with what has none: the others stay where they are.
    for (const auto& [age, place] : by_age) {
        if (unused_ <= keep_bytes) break;
        const auto oldest = free_.find(place);
        // From its end: what is left keeps beginning where blocks begin.
        const std::uintptr_t end = oldest->second.end;
        const std::size_t bytes = std::min(end - oldest->first, whole_pages(unused_ - keep_bytes));
        const std::uintptr_t begin = end - bytes;
        // A huge page may have brought pages to neighbours that have none of their own.
        std::uintptr_t first = begin, last = end;
        if (oldest != free_.begin() && begin == oldest->first)
            if (const auto before = std::prev(oldest);
                before->second.end == begin && !before->second.backed)
                first = std::max(before->first, begin / kHugePage * kHugePage);
        if (const auto after = std::next(oldest);
            after != free_.end() && after->first == end && !after->second.backed)
            last = std::min(after->second.end, (end + kHugePage - 1) / kHugePage * kHugePage);
        (void)madvise(address(first), last - first, MADV_DONTNEED);
        if (begin == oldest->first)
            free_.erase(oldest);
        else
            oldest->second.end = begin;
        unused_ -= bytes;
        insert(begin, {end, false, 0});
    }
    if (keep_bytes == 0) unmap_free_regions();
}

void PageHeap::unmap_free_regions() {
    for (auto region = regions_.begin(); region != regions_.end();) {
        const auto range = free_.find(region->first);
        if (range == free_.end() || range->second.end != region->second || range->second.backed) {
            ++region;
            continue;
        }
        (void)munmap(address(region->first), region->second - region->first);
        free_.erase(range);
        region = regions_.erase(region);
    }
}

}  // namespace ingot::runtime
