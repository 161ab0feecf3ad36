// See iterators.h. The beginnings of the objects are CPython's, in 3.11 and 3.12.
#include "capture/iterators.h"

namespace ingot::capture {
namespace {

/// Of lists, also backwards, and of tuples.
struct SequenceIterator {
    PyObject ob_base;
    Py_ssize_t index;
    PyObject* sequence;  // none: it is at its end
};
struct RangeIterator {
    PyObject ob_base;
#if PY_VERSION_HEX < 0x030C0000
    long index;
#endif
    long start, step, length;
};
struct DictIterator {
    PyObject ob_base;
    PyObject* dict;  // none: it is at its end
    Py_ssize_t used, position;
    PyObject* result;
    Py_ssize_t left;
};
struct Enumerate {
    PyObject ob_base;
    Py_ssize_t index;
    PyObject *iterator, *result, *long_index;
};
struct Zip {
    PyObject ob_base;
    Py_ssize_t size;
    PyObject *iterators, *result;
    int strict;
};

template <class T>
T& as(PyObject* o) {
    return *reinterpret_cast<T*>(o);
}

bool is_sequence_iterator(PyObject* o) {
    return Py_IS_TYPE(o, &PyListIter_Type) || Py_IS_TYPE(o, &PyTupleIter_Type) ||
           Py_IS_TYPE(o, &PyListRevIter_Type);
}
bool is_dict_iterator(PyObject* o) {
    return Py_IS_TYPE(o, &PyDictIterKey_Type) || Py_IS_TYPE(o, &PyDictIterValue_Type) ||
           Py_IS_TYPE(o, &PyDictIterItem_Type);
}

Ref item_of_sequence(PyObject* o, Py_ssize_t ahead) {
    const auto& it = as<SequenceIterator>(o);
    if (it.sequence == nullptr) return {};
    const Py_ssize_t at = Py_IS_TYPE(o, &PyListRevIter_Type) ? it.index - ahead : it.index + ahead;
    if (at < 0 || at >= Py_SIZE(it.sequence)) return {};
    return Ref::borrow(PyList_Check(it.sequence) ? PyList_GET_ITEM(it.sequence, at)
                                                 : PyTuple_GET_ITEM(it.sequence, at));
}

Ref item_of_range(PyObject* o, Py_ssize_t ahead) {
    const auto& it = as<RangeIterator>(o);
#if PY_VERSION_HEX < 0x030C0000
    const long at = it.index + ahead;
#else
    const long at = ahead;
#endif
    if (at >= it.length) return {};
    return Ref::steal(
        PyLong_FromLong(static_cast<long>(it.start + static_cast<unsigned long>(at) * it.step)));
}

Ref part_of_dict(PyObject* o, Py_ssize_t ahead, bool keys, bool* broken) {
    const auto& it = as<DictIterator>(o);
    if (it.dict == nullptr) return {};
    if (it.used != PyDict_GET_SIZE(it.dict)) {
        if (broken != nullptr) *broken = true;
        return {};
    }
    Py_ssize_t position = it.position;
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t n = 0; n <= ahead; ++n)
        if (!PyDict_Next(it.dict, &position, &key, &value)) return {};
    return Ref::borrow(keys ? key : value);
}

}  // namespace

bool is_basic_iterator(PyObject* o) {
    return is_sequence_iterator(o) || Py_IS_TYPE(o, &PyRangeIter_Type) || is_dict_iterator(o);
}

bool moves_others(PyObject* o) { return Py_IS_TYPE(o, &PyEnum_Type) || Py_IS_TYPE(o, &PyZip_Type); }

PyObject* moved_by(PyObject* o, Py_ssize_t index) {
    if (Py_IS_TYPE(o, &PyEnum_Type)) return index == 0 ? as<Enumerate>(o).iterator : nullptr;
    PyObject* all = as<Zip>(o).iterators;
    return index < as<Zip>(o).size ? PyTuple_GET_ITEM(all, index) : nullptr;
}

std::vector<PyObject*> moved_by(PyObject* o) {
    std::vector<PyObject*> all;
    for (Py_ssize_t i = 0; PyObject* one = moved_by(o, i); ++i) all.push_back(one);
    return all;
}

bool is_strict(PyObject* zip) { return Py_IS_TYPE(zip, &PyZip_Type) && as<Zip>(zip).strict != 0; }

Ref count_of(PyObject* enumerate, Py_ssize_t ahead) {
    const Py_ssize_t at = as<Enumerate>(enumerate).index;
    if (at >= PY_SSIZE_T_MAX - ahead) return {};
    return Ref::steal(PyLong_FromSsize_t(at + ahead));
}

Ref item_ahead(PyObject* iterator, Py_ssize_t ahead, bool* broken) {
    if (is_sequence_iterator(iterator)) return item_of_sequence(iterator, ahead);
    if (Py_IS_TYPE(iterator, &PyRangeIter_Type)) return item_of_range(iterator, ahead);
    return part_of_dict(iterator, ahead, Py_IS_TYPE(iterator, &PyDictIterKey_Type), broken);
}

Ref key_ahead(PyObject* iterator, Py_ssize_t ahead) {
    if (!Py_IS_TYPE(iterator, &PyDictIterItem_Type)) return {};
    return part_of_dict(iterator, ahead, true, nullptr);
}

PyObject* iterated(PyObject* iterator) {
    if (is_sequence_iterator(iterator)) return as<SequenceIterator>(iterator).sequence;
    return is_dict_iterator(iterator) ? as<DictIterator>(iterator).dict : nullptr;
}

IteratorPlace::IteratorPlace(PyObject* iterator) : iterator_(Ref::borrow(iterator)) {
    iterated_ = Ref::borrow(iterated(iterator));
    if (is_sequence_iterator(iterator)) {
        numbers_[0] = as<SequenceIterator>(iterator).index;
    } else if (Py_IS_TYPE(iterator, &PyRangeIter_Type)) {
        const auto& it = as<RangeIterator>(iterator);
        numbers_ = {it.start, it.step, it.length, 0};
#if PY_VERSION_HEX < 0x030C0000
        numbers_[3] = it.index;
#endif
    } else if (is_dict_iterator(iterator)) {
        const auto& it = as<DictIterator>(iterator);
        numbers_ = {it.used, it.position, it.left, 0};
    } else {
        if (Py_IS_TYPE(iterator, &PyEnum_Type)) numbers_[0] = as<Enumerate>(iterator).index;
        for (PyObject* inner : moved_by(iterator)) moved_.emplace_back(inner);
    }
}

void IteratorPlace::put_back() const {
    PyObject* o = iterator_.get();
    if (is_sequence_iterator(o)) {
        auto& it = as<SequenceIterator>(o);
        it.index = numbers_[0];
        Py_XSETREF(it.sequence, Py_XNewRef(iterated_.get()));
    } else if (Py_IS_TYPE(o, &PyRangeIter_Type)) {
        auto& it = as<RangeIterator>(o);
        it.start = numbers_[0];
        it.step = numbers_[1];
        it.length = numbers_[2];
#if PY_VERSION_HEX < 0x030C0000
        it.index = numbers_[3];
#endif
    } else if (is_dict_iterator(o)) {
        auto& it = as<DictIterator>(o);
        it.used = numbers_[0];
        it.position = numbers_[1];
        it.left = numbers_[2];
        Py_XSETREF(it.dict, Py_XNewRef(iterated_.get()));
    } else {
        if (Py_IS_TYPE(o, &PyEnum_Type)) as<Enumerate>(o).index = numbers_[0];
        for (const IteratorPlace& inner : moved_) inner.put_back();
    }
}

}  // namespace ingot::capture
