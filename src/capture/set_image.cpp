// See set_image.h.
#include "capture/set_image.h"

#include <algorithm>
#include <span>
#include <utility>

#include "capture/ref.h"

namespace ingot::capture {
namespace {

PySetObject* body_of(PyObject* set) { return reinterpret_cast<PySetObject*>(set); }

std::span<setentry> places_of(PySetObject* set) {
    return {set->table, static_cast<std::size_t>(set->mask + 1)};
}

}  // namespace

SetImage::SetImage(PyObject* set)
    : fill_(body_of(set)->fill), used_(body_of(set)->used), finger_(body_of(set)->finger) {
    const std::span<setentry> places = places_of(body_of(set));
    places_.assign(places.begin(), places.end());
    for (const setentry& e : places_) Py_XINCREF(e.key);  // also what stands for removed ones
}

SetImage::~SetImage() {
    for (const setentry& e : places_) Py_XDECREF(e.key);
}

SetImage::SetImage(SetImage&& other) noexcept
    : places_(std::exchange(other.places_, {})),
      fill_(other.fill_),
      used_(other.used_),
      finger_(other.finger_) {}

SetImage& SetImage::operator=(SetImage&& other) noexcept {
    std::swap(places_, other.places_);
    std::swap(fill_, other.fill_);
    std::swap(used_, other.used_);
    std::swap(finger_, other.finger_);
    return *this;
}

bool SetImage::restore(PyObject* set) const {
    PySetObject* s = body_of(set);
    const std::span<setentry> now = places_of(s);
    // Its members go at the very end: their finalizers may look at the set. What stands for removed
    // members has references in tables that nobody counts.
    std::vector<Ref> old;
    for (const setentry& e : now)
        if (e.key != nullptr && e.hash != -1) old.push_back(Ref::borrow(e.key));
    setentry* table = s->smalltable;
    if (places_.size() > PySet_MINSIZE) {
        table = static_cast<setentry*>(PyMem_Malloc(places_.size() * sizeof(setentry)));
        if (table == nullptr) return false;
    }
    setentry* const heap = s->table == s->smalltable ? nullptr : s->table;
    for (const setentry& e : places_)
        if (e.hash != -1) Py_XINCREF(e.key);
    std::ranges::copy(places_, table);
    s->table = table;
    s->mask = static_cast<Py_ssize_t>(places_.size()) - 1;
    s->fill = fill_;
    s->used = used_;
    s->finger = finger_;
    PyMem_Free(heap);
    for (const Ref& member : old) Py_DECREF(member.get());  // the table's; `old` has another
    return true;
}

}  // namespace ingot::capture
