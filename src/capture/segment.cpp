// See segment.h.
#include "capture/segment.h"

namespace ingot::capture {

bool is_full(const SegmentList& list, std::size_t limit, const Modes& modes) {
    constexpr std::size_t kMostInAll = 8;  // times the limit: each call looks through the list
    if (list.size() < limit) return false;
    std::size_t usual = 0;
    for (const auto& segment : list)
        usual += !segment->unusual && segment->guards.modes == modes ? 1 : 0;
    return usual >= limit || list.size() >= kMostInAll * limit;
}

int Segment::traverse(visitproc visit, void* arg) const {
    if (const int r = guards.traverse(visit, arg)) return r;
    if (const int r = recipes.traverse(visit, arg)) return r;
    if (program)
        if (const int r = program->traverse(visit, arg)) return r;
    Py_VISIT(at.name.get());
    Py_VISIT(at.keyword_names.get());
    return 0;
}

int SegmentTree::traverse(visitproc visit, void* arg) const {
    for (const auto& [key, list] : lists)
        for (const auto& segment : *list)
            if (const int r = segment->traverse(visit, arg)) return r;
    for (const auto& [function, refusal] : refused) Py_VISIT(function);
    for (const auto& [place, refusal] : asks) Py_VISIT(place.first);
    return 0;
}

}  // namespace ingot::capture
