// See segment.h.
#include "capture/segment.h"

namespace ingot::capture {

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
