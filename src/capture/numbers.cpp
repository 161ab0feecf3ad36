// See numbers.h.
#include "capture/numbers.h"

#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>

#include <unordered_set>

#include "capture/objects.h"

namespace ingot::capture {
namespace {

/// An int that is an object of its own, which CPython's small ones are not.
PyObject* new_int(std::int64_t value) {
    if (value < -5 || value > 256) return PyLong_FromLongLong(value);
    PyLongObject* made = _PyLong_New(1);
    if (made == nullptr) return nullptr;
    const int sign = value < 0 ? -1 : value > 0 ? 1 : 0;
#if PY_VERSION_HEX >= 0x030C0000
    made->long_value.ob_digit[0] = static_cast<digit>(sign * value);
    _PyLong_SetSignAndDigitCount(made, sign, sign == 0 ? 0 : 1);
#else
    made->ob_digit[0] = static_cast<digit>(sign * value);
    Py_SET_SIZE(made, sign);
#endif
    return reinterpret_cast<PyObject*>(made);
}

bool is_opaque(PyObject* o) {
    // C code gets at what a generator or such a `map` holds by its Python code alone.
    return is_generator(o) || hands_to_python(o) || PyType_Check(o) || PyModule_Check(o) ||
           PyFunction_Check(o) || PyCode_Check(o) ||
           (module_class() != nullptr && PyType_IsSubtype(Py_TYPE(o), module_class()));
}

}  // namespace

at::Tensor Numbers::add_tensor(PyObject* tensor, std::span<const trace::SymbolicSize> sizes) {
    at::Tensor promise = recorder_.meet(THPVariable_Unpack(tensor), sizes);
    tensors_.insert_or_assign(tensor, Tensor{Ref::borrow(tensor), promise});
    originals_[promise.unsafeGetTensorImpl()] = tensor;
    ++met_;
    return promise;
}

Ref Numbers::add_number(const c10::SymInt& value) {
    if (const auto number = value.maybe_as_int()) return Ref::steal(PyLong_FromLongLong(*number));
    const Expr e = trace::unwrap(value);
    Ref made = Ref::steal(new_int(recorder_.symbols()->hint(e)));
    if (!made) throw pybind11::error_already_set();
    // What may leave 64 bits at another call is a number.
    constexpr std::int64_t kMost = std::int64_t{1} << 61;
    if (const Range range = e.range(); range.lo < -kMost || range.hi > kMost)
        (void)value.guard_int(__FILE__, __LINE__);
    else
        numbers_.insert_or_assign(made.get(), Number{made, value});
    ++met_;
    return made;
}

Ref Numbers::add_float(FloatGuards::Index index) {
    Ref made = Ref::steal(PyFloat_FromDouble(guards_.floats.example(index)));
    if (!made) throw pybind11::error_already_set();
    floats_.insert_or_assign(made.get(), Float{made, index});
    ++met_;
    return made;
}

std::optional<FloatGuards::Index> Numbers::find_float(PyObject* object) const {
    const auto found = floats_.find(object);
    if (found == floats_.end()) return std::nullopt;
    return found->second.index;
}

std::optional<FloatGuards::Index> Numbers::float_of(PyObject* object) {
    if (object == nullptr) return std::nullopt;
    if (const auto index = find_float(object)) return index;
    if (PyFloat_CheckExact(object)) return guards_.floats.constant(PyFloat_AS_DOUBLE(object));
    const auto number = value_of(object);
    if (!number) return std::nullopt;
    constexpr std::int64_t kExact = std::int64_t{1} << 53;  // doubles have all integers up to it
    const Expr e = trace::unwrap(*number);
    if (const Range range = e.range(); range.lo < -kExact || range.hi > kExact) return std::nullopt;
    if (e.is_constant()) return guards_.floats.constant(static_cast<double>(e.constant()));
    return guards_.floats.integer(guards_.sizes().add_computed(e),
                                  static_cast<double>(recorder_.symbols()->hint(e)));
}

const Numbers::FloatInput& Numbers::input_of(FloatGuards::Index index) {
    const auto found = float_inputs_.find(index);
    if (found != float_inputs_.end()) return found->second;
    FloatInput in;
    in.symbol = recorder_.add_float(guards_.floats.example(index), device_, in.real);
    in.promise = trace::contents(in.symbol);
    return float_inputs_.emplace(index, std::move(in)).first->second;
}

std::optional<FloatGuards::Index> Numbers::float_input(const at::Tensor& real) const {
    for (const auto& [index, in] : float_inputs_)
        if (in.real.is_same(real)) return index;
    return std::nullopt;
}

void Numbers::fix_read_floats() {
    for (const auto& [index, in] : float_inputs_)
        if (recorder_.symbols()->is_fixed(in.promise)) guards_.floats.fix(index);
}

const c10::SymInt* Numbers::find(PyObject* object) const {
    const auto found = numbers_.find(object);
    return found == numbers_.end() ? nullptr : &found->second.value;
}

std::optional<c10::SymInt> Numbers::value_of(PyObject* object) const {
    if (object == nullptr || !PyLong_CheckExact(object)) return std::nullopt;
    if (const c10::SymInt* symbol = find(object)) return *symbol;
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    constexpr long long kMost = 1LL << 61;
    if (overflow != 0 || value > kMost || value < -kMost) return std::nullopt;
    return c10::SymInt(value);
}

bool Numbers::has_symbolic_sizes(PyObject* tensor) const {
    return tensors_.contains(tensor) ||
           (is_tensor(tensor) &&
            THPVariable_Unpack(tensor).unsafeGetTensorImpl()->has_symbolic_sizes_strides());
}

Ref Numbers::stand_in_tuple(PyObject* tuple) {
    std::vector<Ref> items;
    bool other = false;
    const Py_ssize_t size = Py_SIZE(tuple);
    for (Py_ssize_t i = 0; i < size; ++i) {
        PyObject* item = PySequence_Fast_GET_ITEM(tuple, i);
        items.push_back(stand_in(item));
        other = other || items.back();
    }
    if (!other) return {};
    const bool list = PyList_Check(tuple);
    Ref made = Ref::steal(list ? PyList_New(size) : PyTuple_New(size));
    if (!made) throw pybind11::error_already_set();
    for (Py_ssize_t i = 0; i < size; ++i) {
        Ref& item = items[static_cast<std::size_t>(i)];
        PyObject* value = item ? item.release() : Py_NewRef(PySequence_Fast_GET_ITEM(tuple, i));
        if (list)
            PyList_SET_ITEM(made.get(), i, value);
        else
            PyTuple_SET_ITEM(made.get(), i, value);
    }
    return made;
}

Ref Numbers::stand_in(PyObject* o, bool as_tensor) {
    if (o == nullptr) return {};
    if (const auto number = find_float(o)) {
        const FloatInput* found = nullptr;
        try {
            found = &input_of(*number);
        } catch (const NotSupported&) {  // the program has begun on another device
            specialise_one(o);
            return {};
        }
        const FloatInput& in = *found;
        if (as_tensor) return Ref::steal(THPVariable_Wrap(in.promise));
        const py::object node = py::cast(in.symbol.toSymNodeImpl());
        return Ref::steal(torch::get_symfloat_class()(node).release().ptr());
    }
    if (const c10::SymInt* symbol = find(o)) return Ref::steal(py::cast(*symbol).release().ptr());
    if (const auto found = tensors_.find(o); found != tensors_.end())
        return Ref::steal(THPVariable_Wrap(found->second.promise));
    if (PyTuple_CheckExact(o) || PyList_CheckExact(o) || THPSize_Check(o)) return stand_in_tuple(o);
    if (PySlice_Check(o)) {
        auto* s = reinterpret_cast<PySliceObject*>(o);
        const Ref start = stand_in(s->start), stop = stand_in(s->stop), step = stand_in(s->step);
        if (!start && !stop && !step) return {};
        return Ref::steal(PySlice_New(start ? start.get() : s->start, stop ? stop.get() : s->stop,
                                      step ? step.get() : s->step));
    }
    return {};
}

PyObject* Numbers::settled(PyObject* result) {
    Ref held = Ref::steal(result);
    if (result == nullptr || PyLong_CheckExact(result) || PyBool_Check(result))
        return held.release();
    const py::handle handle(result);
    if (torch::is_symint(handle)) return add_number(handle.cast<c10::SymInt>()).release();
    if (torch::is_symfloat(handle))
        return PyFloat_FromDouble(handle.cast<c10::SymFloat>().guard_float(__FILE__, __LINE__));
    if (torch::is_symbool(handle))
        return PyBool_FromLong(handle.cast<c10::SymBool>().guard_bool(__FILE__, __LINE__) ? 1 : 0);
    if (is_tensor(result)) {
        const auto found = originals_.find(THPVariable_Unpack(result).unsafeGetTensorImpl());
        return found == originals_.end() ? held.release() : Py_NewRef(found->second);
    }
    if (PyList_CheckExact(result)) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) {
            PyObject* item = settled(Py_NewRef(PyList_GET_ITEM(result, i)));
            if (item == nullptr) return nullptr;
            PyList_SetItem(result, i, item);
        }
    } else if (PyTuple_CheckExact(result) || THPSize_Check(result)) {
        const Py_ssize_t size = PyTuple_GET_SIZE(result);
        Ref made = Ref::steal(PyTuple_New(size));
        bool other = false;
        for (Py_ssize_t i = 0; made && i < size; ++i) {
            PyObject* item = settled(Py_NewRef(PyTuple_GET_ITEM(result, i)));
            if (item == nullptr) return nullptr;
            other = other || item != PyTuple_GET_ITEM(result, i);
            PyTuple_SET_ITEM(made.get(), i, item);
        }
        if (!other) return held.release();
        if (PyTuple_CheckExact(result)) return made.release();
        return PyObject_CallOneArg(reinterpret_cast<PyObject*>(&THPSizeType), made.get());
    }
    return held.release();
}

bool Numbers::specialise_floats(std::span<PyObject* const> objects, int depth) {
    bool any = false;
    for (PyObject* o : objects) {
        if (o == nullptr || depth == 0) continue;
        if (floats_.contains(o)) {
            specialise_one(o);
            any = true;
        } else if (PyTuple_Check(o) || PyList_Check(o)) {
            const std::span<PyObject* const> items(PySequence_Fast_ITEMS(o),
                                                   static_cast<std::size_t>(Py_SIZE(o)));
            any = specialise_floats(items, depth - 1) || any;
        } else if (PyDict_Check(o)) {
            Py_ssize_t position = 0;
            PyObject *key = nullptr, *value = nullptr;
            while (PyDict_Next(o, &position, &key, &value))
                any = specialise_floats({&value, 1}, depth - 1) || any;
        }
    }
    return any;
}

void Numbers::specialise_one(PyObject* o) {
    if (const auto n = numbers_.find(o); n != numbers_.end()) {
        (void)n->second.value.guard_int(__FILE__, __LINE__);
        specialised_.push_back(std::move(n->second.object));
        numbers_.erase(n);
    } else if (const auto f = floats_.find(o); f != floats_.end()) {
        guards_.floats.fix(f->second.index);
        specialised_.push_back(std::move(f->second.object));
        floats_.erase(f);
    } else if (const auto t = tensors_.find(o); t != tensors_.end()) {
        (void)trace::concrete(t->second.promise.sym_sizes());
    }
}

void Numbers::specialise_all() {
    for (auto& [object, number] : numbers_) {
        (void)number.value.guard_int(__FILE__, __LINE__);
        specialised_.push_back(number.object);
    }
    numbers_.clear();
    for (auto& [object, number] : floats_) {
        guards_.floats.fix(number.index);
        specialised_.push_back(number.object);
    }
    floats_.clear();
    for (auto& [object, tensor] : tensors_) (void)trace::concrete(tensor.promise.sym_sizes());
}

void Numbers::specialise(PyObject* object) {
    if (object == nullptr || !any()) return;
    constexpr std::size_t kMost = 2000;
    struct Walk {
        std::vector<PyObject*> open;
        std::unordered_set<PyObject*> seen;
    } walk;
    walk.open.push_back(object);
    walk.seen.insert(object);
    while (!walk.open.empty()) {
        PyObject* o = walk.open.back();
        walk.open.pop_back();
        specialise_one(o);
        if (is_tensor(o) || is_opaque(o)) continue;
        if (walk.seen.size() > kMost) return specialise_all();
        const traverseproc traverse = Py_TYPE(o)->tp_traverse;
        if (traverse == nullptr || !PyObject_IS_GC(o)) {
            if (PySlice_Check(o)) {  // not followed by the collector in every version
                auto* s = reinterpret_cast<PySliceObject*>(o);
                for (PyObject* part : {s->start, s->stop, s->step})
                    if (walk.seen.insert(part).second) walk.open.push_back(part);
            }
            continue;
        }
        traverse(
            o,
            [](PyObject* inner, void* context) {
                auto* w = static_cast<Walk*>(context);
                if (inner != nullptr && w->seen.insert(inner).second) w->open.push_back(inner);
                return 0;
            },
            &walk);
    }
}

}  // namespace ingot::capture
