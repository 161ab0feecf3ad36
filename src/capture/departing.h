// Whether something happens when an object goes: its `__del__`, that of something it holds, what a
// suspended generator does when it is closed, a callback of a weak reference.
//
// A recording holds what it replaces, so that such a thing would happen late. What the object holds
// may be held by others as well and stay; nobody asks, so the answer may be yes without need. It
// does not look into what lives anyhow: classes, modules of Python, globals.
//
// Costs a walk over what the object holds, only where something is replaced while recording; a
// graph of more than kMostDeparting objects counts as one that does something. Below World.
#pragma once
#include <Python.h>

#include <cstddef>

namespace ingot::capture {

inline constexpr std::size_t kMostDeparting = 20'000;

/// The one that does something when `object` (which may be nullptr) goes, or another where there
/// are too many to look at; nullptr: none.
PyObject* acting_when_it_goes(PyObject* object);
/// Likewise for anything that a container holds, but not itself.
PyObject* acting_when_contents_go(PyObject* container);
/// Whether an object has a `__del__` and guards need not keep it: it is reached by its container at
/// each call. Modules of `nn` are known by their identity all the same.
bool is_let_go(PyObject* object);

}  // namespace ingot::capture
