// The objects of a call that a recording changes are no others of the call.
//
// f(a, b) that stores to `a` and then reads `b` was recorded with two objects. Were both one at a
// later call, the read would have to see the store; so that call is another recording's. Built once
// at the end of a segment; costs nothing where nothing from outside that comes with the call is
// changed, else some nanoseconds a container.
#pragma once
#include <Python.h>

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "capture/ref.h"

namespace ingot::capture {

class ChangedObjects {
  public:
    /// A container of the recording: its node if it comes with the call, else -1.
    struct Container {
        PyObject* object = nullptr;
        std::int32_t node = -1;
        bool changed = false;
    };
    ChangedObjects() = default;
    explicit ChangedObjects(std::span<const Container> containers);

    bool holds(std::span<PyObject* const> values) const;
    int traverse(visitproc visit, void* arg) const;

  private:
    std::vector<std::int32_t> changed_, others_;  // nodes
    // Known by their identity: what may not be one of the changed nodes, and what is changed.
    std::unordered_set<PyObject*> pinned_, changed_pinned_;
    std::vector<Ref> held_;
};

}  // namespace ingot::capture
