// What a dict holds, in its order, to be given to it again.
//
// An OrderedDict has two orders: that of its table, which C code sees (and `dict.keys(ordered)`),
// and its own, which `move_to_end` changes. Both are kept; neither taking nor giving asks anything
// of a class that is derived from dict. Costs a copy of the dict. Below Undo and the recipes.
#pragma once
#include <Python.h>

#include "capture/ref.h"

namespace ingot::capture {

struct DictImage {
    Ref items;  // a plain dict; none: there was no memory
    Ref order;  // a list of the keys of an OrderedDict, where it is not the order of `items`

    static DictImage of(PyObject* dict);
};

/// Gives a dict of any class these items in their order and, if there is one, the order of its own.
/// False with the error set where that fails.
bool refill(PyObject* dict, PyObject* items, PyObject* order);

}  // namespace ingot::capture
