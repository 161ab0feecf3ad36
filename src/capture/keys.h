// What finding a key in a dict or set turns on: the contents of tuples and frozensets, which are
// hashed and compared by value, and which of the objects there it is.
//
// Costs a walk over the key, and over a container that was made while recording where the key is an
// object that is known by identity. Above World.
#pragma once
#include <Python.h>

#include "capture/ref.h"

namespace ingot::capture {

class World;

/// `key` is looked up in, or put into, `container` (nullptr: one that is about to be made).
void read_key(World& world, PyObject* key, PyObject* container);
/// Keys that C code takes from `object`: it itself or what it holds.
void read_keys(World& world, PyObject* object);
/// Which of these an object is decides something: a search looks at that before it compares.
void relate_to_items(World& world, PyObject* object, PyObject* sequence);

/// One object for all equal texts, so that a key is known by its address whoever made it; another
/// key is itself.
Ref one_for_equal(PyObject* key);
/// Whether it is a tuple of constants with a number among them.
bool is_tuple_of_numbers(PyObject* value);

}  // namespace ingot::capture
