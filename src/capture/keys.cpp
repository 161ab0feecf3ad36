// See keys.h.
#include "capture/keys.h"

#include "capture/objects.h"
#include "capture/world.h"

namespace ingot::capture {
namespace {

constexpr int kDepthOfKeys = 8;

bool is_by_value(PyObject* key) { return PyTuple_Check(key) || PyFrozenSet_Check(key); }

}  // namespace

void read_key(World& world, PyObject* key, PyObject* container) {
    if (key == nullptr || is_plain_constant(key)) return;
    if (is_by_value(key)) return world.read_whole(key, kDepthOfKeys);
    // What is known of a container from outside is guarded with its keys.
    if (container == nullptr || world.find(key) == nullptr || world.find(container) != nullptr)
        return;
    if (PyDict_Check(container)) {
        Py_ssize_t position = 0;
        for (PyObject* other = nullptr; PyDict_Next(container, &position, &other, nullptr) != 0;)
            world.relate(key, other);
    } else if (PyAnySet_Check(container)) {
        Py_ssize_t position = 0;
        PyObject* other = nullptr;
        for (Py_hash_t hash = 0; _PySet_NextEntry(container, &position, &other, &hash) != 0;)
            world.relate(key, other);
    }
}

void read_keys(World& world, PyObject* object) {
    if (object == nullptr) return;
    read_key(world, object, nullptr);
    if (!PyList_Check(object) && !PyTuple_Check(object)) return;
    for (Py_ssize_t i = 0; i < Py_SIZE(object); ++i) {
        PyObject* key = PySequence_Fast_ITEMS(object)[i];
        read_key(world, key, nullptr);
        for (Py_ssize_t j = 0; j < i && world.find(key) != nullptr && !is_by_value(key); ++j)
            world.relate(key, PySequence_Fast_ITEMS(object)[j]);
    }
}

void relate_to_items(World& world, PyObject* object, PyObject* sequence) {
    if (!PyList_Check(sequence) && !PyTuple_Check(sequence)) return;
    for (Py_ssize_t i = 0; i < Py_SIZE(sequence); ++i)
        world.relate(object, PySequence_Fast_ITEMS(sequence)[i]);
}

bool is_tuple_of_numbers(PyObject* value) {
    if (!PyTuple_CheckExact(value)) return false;
    bool number = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) {
        PyObject* item = PyTuple_GET_ITEM(value, i);
        if (!is_plain_constant(item)) return false;
        number = number || PyLong_CheckExact(item) || PyFloat_CheckExact(item);
    }
    return number;
}

Ref one_for_equal(PyObject* key) {
    PyObject* own = Py_XNewRef(key);
    if (own != nullptr && PyUnicode_CheckExact(own)) PyUnicode_InternInPlace(&own);
    return Ref::steal(own);
}

}  // namespace ingot::capture
