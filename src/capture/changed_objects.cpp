// See changed_objects.h.
#include "capture/changed_objects.h"

#include <c10/util/SmallVector.h>

#include <algorithm>

namespace ingot::capture {

ChangedObjects::ChangedObjects(std::span<const Container> containers) {
    std::unordered_set<PyTypeObject*> types;  // of what is changed and comes with the call
    for (const Container& c : containers)
        if (c.changed && c.node >= 0) types.insert(Py_TYPE(c.object));
    for (const Container& c : containers) {
        if (c.node >= 0) {
            (c.changed ? changed_ : others_).push_back(c.node);
            continue;
        }
        if (c.changed)
            changed_pinned_.insert(c.object);
        else if (types.contains(Py_TYPE(c.object)))
            pinned_.insert(c.object);
        else
            continue;
        held_.push_back(Ref::borrow(c.object));
    }
    if (changed_.empty() && changed_pinned_.empty()) others_.clear();
}

bool ChangedObjects::holds(std::span<PyObject* const> values) const {
    if (changed_.empty() && changed_pinned_.empty()) return true;
    const auto at = [&](std::int32_t node) { return values[static_cast<std::size_t>(node)]; };
    c10::SmallVector<PyObject*, 16> changed;
    for (std::int32_t node : changed_) {
        changed.push_back(at(node));
        if (pinned_.contains(at(node)) || changed_pinned_.contains(at(node))) return false;
    }
    std::ranges::sort(changed);
    if (std::ranges::adjacent_find(changed) != changed.end()) return false;
    return std::ranges::none_of(others_, [&](std::int32_t node) {
        return std::ranges::binary_search(changed, at(node)) || changed_pinned_.contains(at(node));
    });
}

int ChangedObjects::traverse(visitproc visit, void* arg) const {
    for (const Ref& object : held_) Py_VISIT(object.get());
    return 0;
}

}  // namespace ingot::capture
