// See dict_image.h.
#include "capture/dict_image.h"

#include "capture/objects.h"

namespace ingot::capture {
namespace {

/// A method of OrderedDict itself, whatever the object's class makes of its name.
template <class... Arguments>
bool call_ordered(const char* method, const char* format, Arguments... arguments) {
    return static_cast<bool>(Ref::steal(PyObject_CallMethod(
        reinterpret_cast<PyObject*>(&PyODict_Type), method, format, arguments...)));
}

bool set_all(PyObject* dict, PyObject* items) {
    const bool ordered = PyODict_Check(dict);
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(items, &position, &key, &value))
        if ((ordered ? PyODict_SetItem(dict, key, value) : PyDict_SetItem(dict, key, value)) != 0)
            return false;
    return true;
}

}  // namespace

DictImage DictImage::of(PyObject* dict) {
    DictImage image;
    Ref items = Ref::steal(PyDict_New());
    if (!items || !set_all(items.get(), dict)) {
        PyErr_Clear();
        return image;
    }
    if (PyODict_Check(dict)) {
        Ref order = Ref::steal(PyList_New(0));
        Py_ssize_t position = 0;
        PyObject *key = nullptr, *value = nullptr;
        bool differs = false;
        const bool all = order && all_keys(dict, [&](PyObject* next) {
                             if (PyDict_Next(items.get(), &position, &key, &value) == 0)
                                 return false;
                             differs |= key != next;
                             return PyList_Append(order.get(), next) == 0;
                         });
        if (!all) {
            PyErr_Clear();
            return image;
        }
        if (differs) image.order = std::move(order);
    }
    image.items = std::move(items);
    return image;
}

bool refill(PyObject* dict, PyObject* items, PyObject* order) {
    if (!PyODict_Check(dict)) {
        PyDict_Clear(dict);
        return set_all(dict, items);
    }
    if (!call_ordered("clear", "O", dict) || !set_all(dict, items)) return false;
    for (Py_ssize_t i = 0; order != nullptr && i < PyList_GET_SIZE(order); ++i)
        if (!call_ordered("move_to_end", "OO", dict, PyList_GET_ITEM(order, i))) return false;
    return true;
}

}  // namespace ingot::capture
