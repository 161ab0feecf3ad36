// Instructions that build values and take them apart.
#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

Step Evaluator::list_append(int depth) {
    PyObject* operands[] = {top(depth + 1), top()};
    bool done = perform_effect({Operation::add_item, 0, operands},
                               [&] { return PyList_Append(operands[0], operands[1]) == 0; });
    if (!done) return failed();
    drop(1);
    return Step::next;
}

/// Tells the observer whose hashes decide what a new set or dict is.
bool Evaluator::report_hash(std::span<PyObject* const> keys) {
    return keys.empty() || perform_effect({Operation::hash, 0, keys}, [] { return true; });
}

Step Evaluator::set_add(int depth) {
    if (!report_hash({sp_ - 1, 1})) return failed();
    PyObject* operands[] = {top(depth + 1), top()};
    bool done = perform_effect({Operation::add_item, 0, operands},
                               [&] { return PySet_Add(operands[0], operands[1]) == 0; });
    if (!done) return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::map_add(int depth) {
    if (!report_hash({sp_ - 2, 1})) return failed();
    PyObject* operands[] = {top(depth + 2), top(2), top()};
    bool done = perform_effect({Operation::add_item, 0, operands}, [&] {
        return PyDict_SetItem(operands[0], operands[1], operands[2]) == 0;
    });
    if (!done) return failed();
    drop(2);
    return Step::next;
}

Step Evaluator::build_string(int count) {
    PyObject* text = _PyUnicode_JoinArray(names().empty, sp_ - count, count);
    if (text == nullptr) return Step::error;
    drop(count);
    push(text);
    return Step::next;
}

Step Evaluator::build_tuple(int count) {
    PyObject* tuple = PyTuple_New(count);
    if (tuple == nullptr) return Step::error;
    sp_ -= count;
    for (int i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple, i, sp_[i]);
    push(tuple);
    return Step::next;
}

Step Evaluator::build_list(int count) {
    PyObject* list = PyList_New(count);
    if (list == nullptr) return Step::error;
    sp_ -= count;
    for (int i = 0; i < count; ++i) PyList_SET_ITEM(list, i, sp_[i]);
    push(list);
    return Step::next;
}

Step Evaluator::build_set(int count) {
    if (!report_hash({sp_ - count, static_cast<std::size_t>(count)})) return failed();
    PyObject* set = PySet_New(nullptr);
    if (set == nullptr) return Step::error;
    int failure = 0;
    for (int i = count; i > 0 && failure == 0; --i) failure = PySet_Add(set, top(i));
    drop(count);
    if (failure != 0) {
        Py_DECREF(set);
        return Step::error;
    }
    push(set);
    return Step::next;
}

Step Evaluator::build_map(int count) {
    if (observer_ != nullptr) {
        std::vector<PyObject*> keys;
        for (int i = count; i > 0; --i) keys.push_back(top(2 * i));
        if (!report_hash(keys)) return failed();
    }
    PyObject* map = count > 0 ? _PyDict_NewPresized(count) : PyDict_New();
    if (map == nullptr) return Step::error;
    for (int i = count; i > 0; --i) {
        if (PyDict_SetItem(map, top(2 * i), top(2 * i - 1)) != 0) {
            Py_DECREF(map);
            return Step::error;
        }
    }
    drop(2 * count);
    push(map);
    return Step::next;
}

Step Evaluator::build_const_key_map(int count) {
    PyObject* keys = top();
    if (!PyTuple_CheckExact(keys) || PyTuple_GET_SIZE(keys) != count) {
        PyErr_SetString(PyExc_SystemError, "bad BUILD_CONST_KEY_MAP keys argument");
        return Step::error;
    }
    PyObject* map = _PyDict_NewPresized(count);
    if (map == nullptr) return Step::error;
    for (int i = 0; i < count; ++i) {
        if (PyDict_SetItem(map, PyTuple_GET_ITEM(keys, i), top(count + 1 - i)) != 0) {
            Py_DECREF(map);
            return Step::error;
        }
    }
    drop(count + 1);
    push(map);
    return Step::next;
}

Step Evaluator::build_slice(int count) {
    PyObject* slice =
        count == 3 ? PySlice_New(top(3), top(2), top()) : PySlice_New(top(2), top(), nullptr);
    if (slice == nullptr) return Step::error;
    drop(count);
    push(slice);
    return Step::next;
}

Step Evaluator::list_to_tuple(int) {
    PyObject* tuple = PyList_AsTuple(top());
    if (tuple == nullptr) return Step::error;
    replace(1, tuple);
    return Step::next;
}

Step Evaluator::list_extend(int depth) {
    PyObject* iterable = top();
    PyObject* list = top(depth + 1);
    PyObject* operands[] = {list, iterable};
    bool done = perform_effect({Operation::extend_list, 0, operands}, [&] {
        PyObject* none = _PyList_Extend(reinterpret_cast<PyListObject*>(list), iterable);
        Py_XDECREF(none);
        if (none != nullptr) return true;
        if (PyErr_ExceptionMatches(PyExc_TypeError) && Py_TYPE(iterable)->tp_iter == nullptr &&
            !PySequence_Check(iterable)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "Value after * must be an iterable, not %.200s",
                         Py_TYPE(iterable)->tp_name);
        }
        return false;
    });
    if (!done) return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::set_update(int depth) {
    PyObject* operands[] = {top(depth + 1), top()};
    bool done = perform_effect({Operation::extend_set, 0, operands},
                               [&] { return _PySet_Update(operands[0], operands[1]) >= 0; });
    if (!done) return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::dict_update(int depth) {
    PyObject* operands[] = {top(depth + 1), top()};
    bool done = perform_effect({Operation::extend_dict, 0, operands}, [&] {
        if (PyDict_Update(operands[0], operands[1]) >= 0) return true;
        if (PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping",
                         Py_TYPE(operands[1])->tp_name);
        return false;
    });
    if (!done) return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::dict_merge(int depth) {
    PyObject* operands[] = {top(depth + 1), top()};
    PyObject* function = top(depth + 3);
    bool done = perform_effect({Operation::extend_dict, 1, operands}, [&] {
        if (_PyDict_MergeEx(operands[0], operands[1], 2) >= 0) return true;
        raise_for_keywords(function, operands[1]);
        return false;
    });
    if (!done) return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::format_value(int how) {
    bool has_specification = (how & FVS_MASK) == FVS_HAVE_SPEC;
    PyObject* specification = has_specification ? top() : nullptr;
    PyObject* value = top(1 + has_specification);
    PyObject* operands[] = {value, specification};
    PyObject* result = nullptr;
    bool done = perform({Operation::format, how & FVC_MASK, operands}, &result, [&] {
        PyObject* text = nullptr;
        switch (how & FVC_MASK) {
            case FVC_NONE:
                text = Py_NewRef(value);
                break;
            case FVC_STR:
                text = PyObject_Str(value);
                break;
            case FVC_REPR:
                text = PyObject_Repr(value);
                break;
            case FVC_ASCII:
                text = PyObject_ASCII(value);
                break;
            default:
                PyErr_Format(PyExc_SystemError, "unexpected conversion flag %d", how & FVC_MASK);
        }
        if (text == nullptr || (PyUnicode_CheckExact(text) && specification == nullptr))
            return text;
        PyObject* formatted = PyObject_Format(text, specification);
        Py_DECREF(text);
        return formatted;
    });
    if (!done) return failed();
    drop(1 + has_specification);
    push(result);
    return Step::next;
}

namespace {

/// Fills `values` (the first value last) with the `count` values of `iterable` and, unless `after`
/// is negative, a list of the further ones and the last `after`. False with the error set.
bool unpack(PyObject* iterable, int count, int after, PyObject** values) {
    PyObject* iterator = PyObject_GetIter(iterable);
    if (iterator == nullptr) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) && Py_TYPE(iterable)->tp_iter == nullptr &&
            !PySequence_Check(iterable))
            PyErr_Format(PyExc_TypeError, "cannot unpack non-iterable %.200s object",
                         Py_TYPE(iterable)->tp_name);
        return false;
    }
    int total = count + (after >= 0 ? 1 + after : 0);
    int taken = 0;
    auto give_up = [&] {
        for (int i = 0; i < taken; ++i) Py_DECREF(values[total - 1 - i]);
        Py_DECREF(iterator);
        return false;
    };
    for (; taken < count; ++taken) {
        PyObject* value = PyIter_Next(iterator);
        if (value == nullptr) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError,
                             after < 0
                                 ? "not enough values to unpack (expected %d, got %d)"
                                 : "not enough values to unpack (expected at least %d, got %d)",
                             after < 0 ? count : count + after, taken);
            return give_up();
        }
        values[total - 1 - taken] = value;
    }
    if (after < 0) {
        PyObject* further = PyIter_Next(iterator);
        if (further != nullptr) {
            Py_DECREF(further);
            PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", count);
        }
        if (PyErr_Occurred()) return give_up();
        Py_DECREF(iterator);
        return true;
    }
    PyObject* list = PySequence_List(iterator);
    if (list == nullptr) return give_up();
    values[total - 1 - taken++] = list;
    Py_ssize_t size = PyList_GET_SIZE(list);
    if (size < after) {
        PyErr_Format(PyExc_ValueError,
                     "not enough values to unpack (expected at least %d, got %zd)", count + after,
                     count + size);
        return give_up();
    }
    for (Py_ssize_t i = after; i > 0; --i)
        values[total - 1 - taken++] = PyList_GET_ITEM(list, size - i);
    Py_SET_SIZE(reinterpret_cast<PyVarObject*>(list), size - after);
    Py_DECREF(iterator);
    return true;
}

/// The same for exact tuples and lists, which need no iterator; false: not one of the right size.
bool unpack_directly(PyObject* sequence, int count, PyObject** values) {
    if (!PyTuple_CheckExact(sequence) && !PyList_CheckExact(sequence)) return false;
    if (PySequence_Fast_GET_SIZE(sequence) != count) return false;
    PyObject** items = PySequence_Fast_ITEMS(sequence);
    for (int i = 0; i < count; ++i) values[count - 1 - i] = Py_NewRef(items[i]);
    return true;
}

}  // namespace

Step Evaluator::unpack_to(int count, int after) {
    PyObject* iterable = top();
    int total = count + (after >= 0 ? 1 + after : 0);
    if (observer_ == nullptr && after < 0 && unpack_directly(iterable, count, sp_ - 1)) {
        sp_ += count - 1;
        Py_DECREF(iterable);
        return Step::next;
    }
    // Beside the stack, because the iterable stays there until all have come.
    std::vector<PyObject*> values(static_cast<std::size_t>(total), nullptr);
    bool unpacked = false;
    bool done = perform_effect({Operation::unpack, after < 0 ? count : -1, {&top(), 1}}, [&] {
        unpacked = (after < 0 && unpack_directly(iterable, count, values.data())) ||
                   unpack(iterable, count, after, values.data());
        return unpacked;
    });
    if (!done) {
        if (unpacked)
            for (PyObject* value : values) Py_DECREF(value);
        return failed();
    }
    --sp_;
    for (PyObject* value : values) push(value);
    Py_DECREF(iterable);
    return Step::next;
}

Step Evaluator::unpack_sequence(int count) { return unpack_to(count, -1); }
Step Evaluator::unpack_ex(int argument) { return unpack_to(argument & 0xff, argument >> 8); }

}  // namespace ingot::capture
