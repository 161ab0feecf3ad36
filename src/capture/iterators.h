// CPython's iterators over lists, tuples, ranges and dicts, and `enumerate` and `zip` over them:
// what they are going to give, without moving them.
//
// An iterator that lives across a break comes into the segment behind it from outside. Guards look
// at what lies ahead of it, so that one recording serves all iterations of a loop; the recording
// itself moves it, and so does an effect of each replay. Iterators of other classes break where
// they move. Costs some nanoseconds an item.
#pragma once
#include <Python.h>

#include <array>
#include <vector>

#include "capture/ref.h"

namespace ingot::capture {

/// Whether it iterates over a list, tuple, range or dict as it is.
bool is_basic_iterator(PyObject* o);
/// Whether it is `enumerate` or `zip`, which move other iterators.
bool moves_others(PyObject* o);
/// The iterators that it moves, in order, borrowed.
std::vector<PyObject*> moved_by(PyObject* o);
/// The `index`-th of these; nullptr: there are fewer.
PyObject* moved_by(PyObject* o, Py_ssize_t index);
/// Whether it looks, at its end, whether the others are at theirs.
bool is_strict(PyObject* zip);
/// The number that `enumerate` gives next; nullptr if that is no small number.
Ref count_of(PyObject* enumerate, Py_ssize_t ahead);
/// What a basic iterator gives (one over a dict's items: the value in it) after `ahead` others;
/// nothing: it is at its end by then, or what it iterates over has been changed so that it would
/// raise (`broken`).
Ref item_ahead(PyObject* iterator, Py_ssize_t ahead, bool* broken = nullptr);
/// The key before that, of an iterator over a dict's items; nothing for any other.
Ref key_ahead(PyObject* iterator, Py_ssize_t ahead);
/// What it iterates over; nullptr: nothing any more.
PyObject* iterated(PyObject* iterator);

/// Where an iterator stands, to be put back there.
class IteratorPlace {
  public:
    explicit IteratorPlace(PyObject* iterator);
    void put_back() const;

  private:
    Ref iterator_, iterated_;
    std::array<Py_ssize_t, 4> numbers_{};
    std::vector<IteratorPlace> moved_;
};

}  // namespace ingot::capture
